"""What an evaluation says before it starts and while it runs."""

from __future__ import annotations

import io
import sys

import pytest
from fakes import make_sample

from vtcli.engines.openai.ledger import Price
from vtcli.rollout.loop import GroupRequest, Limits
from vtcli.runs.outlook import outlook
from vtcli.runs.progress import ScoreBars

GROUPS = [GroupRequest(make_sample(id=f"v{n}", task="vstar"), 2, 0) for n in range(3)]
GROUPS += [GroupRequest(make_sample(id="m", task="mine"), 1, 0)]
LIMITS = Limits(max_turns=3, max_tokens=1000)


def test_rollouts_and_tokens_are_bounded() -> None:
    """3 × 2 + 1 = 7 rollouts of at most 1000 tokens and 3 + 1 turns."""
    assert outlook(GROUPS, 7, LIMITS) == (
        "7 rollouts (mine 1 × 1, vstar 3 × 2): at most 4 turns and 1000 tokens each, 7000 in all"
    )
    assert outlook(GROUPS, 5, LIMITS, Price()).startswith("5 of 7 rollouts are left (mine 1 × 1, vstar 3 × 2): ")


def test_an_endpoint_reads_its_context_at_every_turn() -> None:
    """5000 tokens, read 4 times for 100 a million and written once for 400: 2 + 2."""
    assert outlook(GROUPS, 5, LIMITS, Price(100.0, 400.0, "EUR")).endswith(
        "5000 in all; at most 4.00 EUR, as each turn reads the whole context again"
    )


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
