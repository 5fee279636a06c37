"""Bars over rows, on a terminal and in a log file."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from vtcli import progress
from vtcli.progress import RowBars


def test_a_log_file_has_a_line_now_and_then_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with RowBars() as bars:
        bars.begin("rows", 4, 1)
        bars.begin("none", 0)
        assert list(bars.track("none", [])) == []
        for now[0] in (10.0, 31.0, 40.0):
            bars.advance("rows")
        bars.begin("measured", None)
        for now[0] in (45.0, 46.0, 80.0):
            bars.advance("measured")
    assert capsys.readouterr().err == "rows 3/4, about 16 s left\nrows 4/4\nmeasured 3\n"


def test_rows_that_are_left_out_count_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with RowBars() as bars:
        bars.begin("rows", 5)
        assert list(bars.track("rows", iter("abc"))) == ["a", "b", "c"]
    assert capsys.readouterr().err == "rows 5/5\n"


def test_a_terminal_has_a_bar_for_each_set_that_has_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with RowBars() as bars:
        bars.begin("train", 2)
        bars.begin("validation", 0)
        bars.begin("measured", None)
        bars.advance("train")
        bars.advance("measured", 7)
    last = shown.getvalue()
    assert "train" in last and "1/2" in last and "7/?" in last and "validation" not in last
