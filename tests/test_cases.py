"""A table of cases runs all of them and lists those that fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cases import each_case


def test_all_failures_are_listed_and_each_case_is_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []

    @each_case("number", [1, 2, 3])
    @each_case(("letter",), [("a",), ("b",)], ids=["A", "B"])
    def test(number: int, letter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen.append((number, letter))
        (tmp_path / "made").mkdir()  # fails in a folder that two cases share
        monkeypatch.setenv("VTCLI_CASE", letter)
        assert (number, letter) not in [(1, "b"), (3, "a")], "as planned"

    with pytest.raises(AssertionError, match="2 of 3 cases failed") as caught:
        test(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert len(seen) == 6
    labels = [line for line in str(caught.value).splitlines() if line in ("1:", "2:", "3:", "A:", "B:")]
    assert labels == ["1:", "B:", "3:", "A:"]
    assert str(caught.value).count("as planned") == 2
    assert "VTCLI_CASE" not in os.environ


def test_a_skipped_case_hides_no_failure_after_it() -> None:
    @each_case("number", [1, 2])
    def test(number: int) -> None:
        if number == 1:
            pytest.skip("not here")
        raise AssertionError("as planned")

    with pytest.raises(AssertionError, match="1 of 2 cases failed"):
        test()
    with pytest.raises(pytest.skip.Exception, match="not here"):
        each_case("number", [1])(lambda number: pytest.skip("not here"))()
    with pytest.raises(AssertionError, match="no marks"):
        each_case("number", [pytest.param(1, marks=pytest.mark.slow)])
