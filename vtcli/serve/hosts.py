"""Hosts that a server on loopback answers to. A page of somebody could else ask through a name of its own (DNS)."""

from __future__ import annotations

import re

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Returns True if a ``Host`` header names this machine, with or without a port."""
    return re.sub(r":\d+$", "", host).strip("[]").lower().removesuffix(".") in LOOPBACK
