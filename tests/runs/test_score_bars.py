"""Bars of an evaluation, one a benchmark, while it runs."""

from __future__ import annotations

import io
import sys

import pytest

from vtcli.runs.progress import ScoreBars


def test_bars_have_the_score_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    with ScoreBars("eval", {"vstar": 3, "mine": 1}) as bars:
        bars.add("vstar", 1.0)  # of an earlier attempt
        bars.advance("vstar", 0.5)
        bars.advance("mine", None)  # it broke
        bars.advance("vstar", 0.0)
    assert capsys.readouterr().err == "eval 4/4: vstar 3/3 score 0.500, mine 1/1\n"


def test_a_terminal_has_a_bar_for_each_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with ScoreBars("eval", {"vstar": 2, "mine": 1}) as bars:
        bars.advance("vstar", 1.0)
    last = shown.getvalue()
    assert "eval vstar" in last and "eval mine" in last and "1/2" in last and "score 1.000" in last
