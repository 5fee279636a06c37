"""The bounds of an evaluation, said before it starts: rollouts, tokens, and an endpoint's money. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vtcli.engines.openai.ledger import Price, TokenUsage
from vtcli.rollout.loop import GroupRequest, Limits


def outlook(groups: Sequence[GroupRequest], left: int, limits: Limits, price: Price | None = None) -> str:
    """Return one line: the rollouts of each task, how many are left, and what these take at most.

    Each of ``left`` rollouts has at most ``limits.max_tokens`` in context. An endpoint reads the context again at every
    turn, of which there are at most ``max_turns`` + 1; all that it writes stays in the context. So the money is at most
    (turns × input price + output price) × tokens.

    Args:
        price: of an endpoint; None, or prices of 0: no money is named.
    """
    sizes = Counter((group.sample.task, group.size) for group in groups)
    asked = ", ".join(f"{task} {count} × {size}" for (task, size), count in sorted(sizes.items()))
    total, tokens, turns = sum(group.size for group in groups), left * limits.max_tokens, limits.max_turns + 1
    some = f"{left} of {total} rollouts are left" if left < total else f"{total} rollouts"
    line = f"{some} ({asked}): at most {turns} turns and {limits.max_tokens} tokens each, {tokens} in all"
    if price is None or not (price.input or price.output):
        return line
    money = TokenUsage(tokens * turns, tokens).money(price)
    return f"{line}; at most {money:.2f} {price.currency}, as each turn reads the whole context again"
