"""Names under which a server on loopback answers."""

from __future__ import annotations

from cases import each_case

from vtcli.serve.hosts import is_allowed, is_loopback, is_public


@each_case("host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "Localhost.:80", "[::1]", "[::1]:8000"])
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@each_case("host", ["", "evil.example", "127.0.0.1.evil.example", "localhost@evil", "127.1", "::1:2:3"])
def test_other_names(host: str) -> None:
    assert not is_loopback(host)


@each_case("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_anybody_reaches(address: str) -> None:
    assert is_public(address)


@each_case(
    "address",
    [
        *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *(
            "100.64.0.1",
            "192.0.0.8",
            "64:ff9b:1::808:808",
            "192.0.2.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:a00:1", "::127.0.0.1", "64:ff9b::7f00:1"),
        *("2002:7f00:1::", "2002:808:808::", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),  # 6to4, Teredo
        *("", "localhost", "2130706433", "0x7f000001", "127.1", "8.8.8.8, 127.0.0.1"),
    ],
)
def test_addresses_of_some_network_only(address: str) -> None:
    assert not is_public(address)


HOSTS = ("images.example", "other.example:8080", "10.0.0.1")


@each_case(
    "url",
    [
        *("https://images.example/a.png?b=c", "http://images.example:80/", "HTTPS://Images.Example/x"),
        *("http://other.example:8080/", "http://10.0.0.1/x"),  # what it leads to is asked of ``is_public``
    ],
)
def test_allowed_hosts(url: str) -> None:
    assert is_allowed(url, HOSTS) and not is_allowed(url, ())


@each_case(
    "url",
    [
        *("http://evil.example/", "http://images.example.evil.example/", "http://images.example:8080/"),
        *(
            "http://other.example/",
            "ftp://images.example/",
            "file:///etc/passwd",
            "//images.example/x",
            "images.example",
        ),
        *("http://images.example@evil.example/", "http://evil.example\\@images.example/", "http://a:b@images.example/"),
        *(
            "http://images.example\\.evil.example/",
            "http://images.example\n.evil/",
            "http://images.example :80/",
            "http://",
        ),
        *(
            "http://evil.example#@images.example/",
            "http://evil.example?@images.example/",
            "http://[::1]/",
            "http://0x7f.1/",
        ),
        *("http://images.example:99999/", "http://images.example.:1/", "http:///images.example", "https://"),
    ],
)
def test_other_hosts(url: str) -> None:
    assert not is_allowed(url, HOSTS)
