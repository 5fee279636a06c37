"""URLs, headers and the trial's pictures, without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cases import each_case

from vtcli.errors import ConfigError
from vtcli.judging import model
from vtcli.judging.endpoint import Endpoint, Patience, completions_url, retry_after


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after({}) is None
    assert retry_after({"Retry-After": "7"}) == 7.0
    assert retry_after({"Retry-After": "-3"}) is None
    assert retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0  # that is over
    assert (retry_after({"Retry-After": "Wed, 21 Oct 2150 07:28:00 GMT"}) or 0) > 1e9


@each_case("url", ["", "localhost:8000", "ftp://x/v1", "http://", "http://h:99999/v1", "http://[::1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"judge\.url must be the base URL"):
        completions_url(url)


@each_case("url", ["http://me:pw@host/v1", "https://host/v1?key=sk-1"])
def test_a_url_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        completions_url(url)
    assert "pw" not in str(caught.value) and "sk-1" not in str(caught.value)


def test_a_key_in_place_of_its_variable_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match="name of an environment variable") as caught:
        Endpoint("http://h/v1", "sk-12345", Patience())
    assert "12345" not in str(caught.value)


def test_a_url_may_already_lead_to_the_completions() -> None:
    assert completions_url("http://h/v1/") == completions_url("http://h/v1/chat/completions")


def test_the_pictures_of_the_trial_differ_in_what_is_asked() -> None:
    red = {name: (make()[:, :, 0].astype(int) - make()[:, :, 1] > 100).mean() for name, make in model.PICTURES.items()}
    assert red["disc"] > 0.3 and red["stripes"] == 0


def test_a_key_may_end_with_its_line_and_hold_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "secret\n")
    assert Endpoint("http://h/v1", "KEY_OF_TEST", Patience())._key == "secret"
    monkeypatch.setenv("KEY_OF_TEST", "sec\nret")
    with pytest.raises(ConfigError, match=r"judge\.key_env=KEY_OF_TEST: its key has a line break"):
        Endpoint("http://h/v1", "KEY_OF_TEST", Patience())


def test_a_login_in_netrc_beside_a_key_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("KEY_OF_TEST", "secret")

    async def ask() -> None:
        endpoint = Endpoint("http://127.0.0.1:9/v1", "KEY_OF_TEST", Patience())
        endpoint.open()
        try:
            await endpoint.ask({})
        finally:
            await endpoint.close()

    with pytest.raises(ConfigError, match=r"netrc and a key in KEY_OF_TEST exclude each other"):
        asyncio.run(ask())
