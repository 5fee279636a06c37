"""Hosts: names that a server on loopback answers to, and hosts that images may be fetched from. Pure.

Otherwise a web page could reach a server on loopback through a DNS name that it controls, and a client could make the
server fetch from the network behind it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from yarl import URL

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Returns True if a ``Host`` header names this machine, with or without a port."""
    return re.sub(r":\d+$", "", host).strip("[]").lower().removesuffix(".") in LOOPBACK


def is_allowed(url: str, hosts: Sequence[str]) -> bool:
    """Returns True for an http(s) address at one of ``hosts``. A host is a name, with the port unless it is the
    scheme's default. Returns False for an address with a user, a backslash or a space."""
    # Parsers disagree on these characters: what yarl takes for the host another would take for the path.
    if re.search(r"[\\\s\x00-\x1f\x7f]", url):
        return False
    try:
        found = URL(url)
        port = found.explicit_port
    except ValueError:
        return False
    if found.scheme not in ("http", "https") or found.user is not None or found.password is not None or not found.host:
        return False
    usual = port is None or port == {"http": 80, "https": 443}[found.scheme]
    return (found.host if usual else f"{found.host}:{port}") in hosts


def is_host(text: str) -> bool:
    """Returns True for a host as ``is_allowed`` compares it: a name in small letters or an address, and perhaps a port.

    >>> is_host("images.example:8000"), is_host("https://images.example"), is_host("Images.Example")
    (True, False, False)
    """
    places = (text, f"[{text}]")
    return any(is_allowed(f"{scheme}://{place}/", [text]) for scheme in ("http", "https") for place in places)


NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "2001::/23")))
"""Networks of IANA's registries of special addresses that Python 3.11 takes for global ones."""

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses that stand for IPv4 ones, in their last 32 bits."""


def is_public(address: str) -> bool:
    """Returns True for a network address that anybody can reach. Returns False for this machine, private, reserved,
    link-local and multicast networks, and IPv6 addresses that stand for one of these."""
    try:
        # Without the zone of a link-local address (fe80::1%eth0).
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found in NAT64:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        # 6to4 and Teredo addresses carry an IPv4 one that a relay would reach; nobody serves images there.
        if found.sixtofour is not None or found.teredo is not None or found.is_site_local:
            return False
    bad = found.is_multicast or found.is_reserved or found.is_unspecified or found.is_loopback or found.is_link_local
    return found.is_global and not bad and not any(found in network for network in NOT_PUBLIC)
