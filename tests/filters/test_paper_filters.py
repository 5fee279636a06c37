"""Files of conf/filter that a paper names: what they leave, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from cases import each_case

from stages.filter import Config
from vtcli.config import compose
from vtcli.filters.facts import PassRate, RowFacts

ROW = RowFacts("answer-train", 0, "a", "answer", "How many?", "3", ((100, 50),), ("m1",), "c1")
DEMO = replace(ROW, file="train", form="demo")


def rules(*words: str) -> dict[str, Any]:
    job = compose.load("filter", ["data=d@latest", "model=b@latest", *words])
    return cast("dict[str, Any]", compose.build(Config, job).rules)


def test_weak_to_strong_puts_every_question_into_one_stratum() -> None:
    """CodeDance 3.2: of eight tries without tools, 0 to 4 right are hard, 5 to 8 easy."""
    hard, easy = (rules("+recipe=codedance", f"filter={name}")["without_tools"] for name in ("hard", "easy"))
    for right in range(9):
        rates = {ROW.key: PassRate("c1", ("right",) * right + ("wrong",) * (8 - right))}
        stays = [rule([ROW], plain_rates=rates) == [None] for rule in (hard, easy)]
        assert stays == [right <= 4, right > 4]


@each_case(("turns", "stays"), [(0, False), (1, False), (2, True), (3, True)])
def test_the_cold_start_of_pyvision_has_two_tool_turns(turns: int, stays: bool) -> None:
    said = [{"role": "user", "content": "How many?"}]
    said += [{"role": role, "content": "x"} for _ in range(turns) for role in ("assistant", "tool")]
    said += [{"role": "assistant", "content": "<answer>3</answer>"}]
    rule = rules("filter=cold_start")["tool_turns"]
    assert (rule([DEMO], messages={DEMO.key: said}) == [None]) == stays
