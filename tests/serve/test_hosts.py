"""Names under which a server on loopback answers."""

from __future__ import annotations

import pytest

from vtcli.serve.hosts import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "Localhost.:80", "[::1]", "[::1]:8000"])
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example", "localhost@evil", "127.1", "::1:2:3"])
def test_other_names(host: str) -> None:
    assert not is_loopback(host)
