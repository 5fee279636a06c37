"""What an evaluation states before it starts: its rollouts, tokens and an endpoint's money."""

from __future__ import annotations

from fakes import make_sample

from stages.eval import outlook
from vtcli.engines.openai.ledger import Price
from vtcli.rollout.loop import GroupRequest, Limits

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
