"""A reward from outside: what it gives is checked before it is learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from cases import each_case

from vtcli.errors import ConfigError
from vtcli.rewards import require_finite, verdicts
from vtcli.schema import Signals, Verdict

GROUP = [Signals({"a": 1.0}), Signals({"a": 2.0})]


def own(signals_G: Sequence[Signals], *, found: Any) -> Any:
    return found


def test_a_verdict_or_none_for_each_is_taken() -> None:
    found = [Verdict(1.0, {}), None]
    assert verdicts(partial(own, found=found), GROUP) is found


@each_case(
    ("found", "given"),
    [([Verdict(1.0, {})], "gave 1 of 2 trajectories"), ([0.5, None], "gave 0.5 for one of 2 trajectories")],
)
def test_anything_else_names_the_reward(found: list[Any], given: str) -> None:
    with pytest.raises(ConfigError, match=rf"the reward \S*test_own\.own {given}; expected a Verdict or None for each"):
        verdicts(partial(own, found=found), GROUP)


@each_case("found", [Verdict(float("nan"), {"a": 1.0}), Verdict(1.0, {}, (0.0, float("inf")))])
def test_a_verdict_that_is_not_finite_names_the_reward(found: Verdict) -> None:
    with pytest.raises(ConfigError, match=r"the reward \S*test_own\.own gave (nan|inf): Verdict\(.*Expected finite"):
        require_finite(partial(own, found=[found]), [None, Verdict(1.0, {}), found])
    require_finite(partial(own, found=[]), [None, Verdict(None, {"a": None}), Verdict(1.0, {}, (0.5,))])
