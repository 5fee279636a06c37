"""Rules of demonstrations by hand, and of references that their own rule finds wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from cases import each_case
from fakes import make_trajectory

from vtcli.errors import ConfigError
from vtcli.filters import applying, turns, verifiable
from vtcli.filters.facts import RowFacts
from vtcli.schema import Sample
from vtcli.signals import answer

ROW = RowFacts("train", 0, "d", "demo", "", "", (), (), "c")


def why(rule: Any, *texts: str, question: str = "<image>How many?", **keys: Any) -> str | None:
    """The rule's reason for one demonstration: texts of the policy and, between them, of the world."""
    roles = [("assistant", "tool")[n % 2] for n in range(len(texts))]
    shown = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": question}]
    shown += [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    (found,) = rule([ROW], messages={ROW.key: shown}, **keys)
    return found


def test_tool_turns_are_answered_calls_whoever_answers() -> None:
    assert why(turns.tool_turns, "<answer>3</answer>") == "0 tool turns, outside 1..any"
    five = ("call", "Done.", "call", "Done.", "3")
    assert why(turns.tool_turns, *five, min_turns=2) is None
    assert why(turns.tool_turns, *five, min_turns=3) == "2 tool turns, outside 3..any"
    assert why(turns.tool_turns, *five, max_turns=1) == "2 tool turns, outside 1..1"
    by_user = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    assert turns.tool_turns([ROW], messages={ROW.key: by_user}) == [None]


@each_case(
    ("text", "failed"),
    [
        ("Error: there is no image 3", True),
        ("<tool_response>\nerror: no such tool", True),
        ("Traceback (most recent call last):\n  File", True),
        ("line 3\nValueError: bad box", True),
        ("The code timed out after 10 s", True),
        ("<image>Here is the crop.", False),
        ("The sign says: errors are free", False),
        ("mean error 0.3", False),
        ("mean\nerror: 0.02", False),
        ("Error: 3%", False),
        ("text on page: your session timed out at 5", False),
        ("\n" * 100_000, False),
    ],
)
def test_failed_calls_are_known_by_what_the_world_says(text: str, failed: bool) -> None:
    found = why(turns.failed_calls, "Error: not mine", text, "3")
    assert (found is not None) is failed
    assert why(turns.failed_calls, "call", text, "3", max_failed=1) is None
    assert why(turns.failed_calls, "call", "FAIL 7", "3", failure="^fail") == "1 failed calls, above 0: 'FAIL 7'"


def test_length_is_of_what_the_policy_wrote() -> None:
    assert why(turns.length, " abc ", "x" * 100, "de", max_chars=5) is None
    assert why(turns.length, "abcd", "x", "de", max_chars=5) == "its turns have 6 characters, outside 1..5"
    assert why(turns.length, " ") == "its turns have 0 characters, outside 1..any"


def test_a_thought_is_in_the_questions_script() -> None:
    english, chinese = "There are three cats on the roof", "屋顶上有三只猫"
    assert why(turns.language, english) is None
    assert why(turns.language, chinese) == "0% of its letters are Latin, as the question is"
    assert why(turns.language, chinese, question="图中有几只猫?") is None
    assert why(turns.language, english, question="図に猫は何匹いますか") is not None
    assert why(turns.language, f"{english}: the sign says 出口") is None
    code = "<code>\nimport cv2\nimage = cv2.imread('page.png')\n</code>"
    assert why(turns.language, f"{chinese}{code}", question="图中有几只猫?") is None
    assert why(turns.language, "3", question="2 + 1 = ?") is None


@each_case(
    ("texts", "reason"),
    [
        (("<think>a</think><tool_call>{}</tool_call>", "ok", "<answer>3</answer>"), None),
        (("<think>a", "ok", "<answer>3</answer>"), "turn 0 does not close <think>"),
        (("a", "ok", "<answer>3"), "turn 1 does not close <answer>"),
        (("<answer>3</answer>", "ok", "<answer>3</answer>"), "it answers before its last turn"),
        (("<answer>3</answer><answer>4</answer>",), "its last turn has 2 answers"),
        (("three",), "its last turn has 0 answers"),
        (("<answer> </answer>",), "its answer is empty"),
        (
            ("a <tool_response>crop</tool_response>", "ok", "<answer>3</answer>"),
            "turn 0 writes an observation itself: <tool_response>",
        ),
    ],
)
def test_form_of_turns(texts: tuple[str, ...], reason: str | None) -> None:
    assert why(turns.form, *texts) == reason
    if reason == "its last turn has 0 answers":
        assert why(turns.form, *texts, answered=False) is None


def test_repetition_at_the_end() -> None:
    plain = "The sign on the left of the gate is red, and beside it there is a smaller one in blue."
    assert why(turns.repetition, plain) is None
    assert why(turns.repetition, plain + " wait, let me look at it again" * 40) is not None
    assert why(turns.repetition, "wait " * 500 + plain * 1 + " ".join(map(str, range(400)))) is None  # long ago


def test_rows_that_are_no_demonstrations_stay_and_wrong_keys_are_one_error() -> None:
    rules = (turns.tool_turns, turns.failed_calls, turns.length, turns.language, turns.form, turns.repetition)
    assert all(rule([ROW], messages={}) == [None] for rule in rules)
    for rule, keys, said in (
        (turns.failed_calls, {"failure": "("}, r"failure='\('"),
        (turns.language, {"min_share": 2}, "min_share=2"),
        (turns.repetition, {"gram": 0}, "max_share=0.3, gram=0"),
    ):
        with pytest.raises(ConfigError, match=rf"filter\.rules\.mine: {said}: expected"):
            applying.apply({"mine": partial(rule, **keys)}, [ROW], {"messages": lambda rows, decided: {}}, 1)


def sample(answer: str, truth: Mapping[str, Any], form: str = "answer") -> Sample:
    return Sample("s", "t", form, "train", "Which?\nA. red\nB. blue", answer, (), (), truth)


CASES: Sequence[tuple[Sample, str | None]] = [
    (sample("blue", {"rule": "choices", "choices": ["red", "blue"]}), None),
    (sample("green", {"rule": "choices", "choices": ["red", "blue"]}), "its rule finds the reference 'green' wrong"),
    (sample("12", {"rule": "numeric"}), None),
    (sample("about a dozen", {"rule": "numeric"}), "its rule finds the reference 'about a dozen' wrong"),
    (sample("3", {"rule": "counts", "value": [4], "total": 5}), "its rule finds the reference '3' wrong"),
    (sample("3", {"rule": "counts"}), "its rule cannot score it (KeyError: 'value')"),
    (sample("a red one", {"rule": "judge"}), None),
    (sample("3", {"rule": "nonsense"}), "sample s is scored by the rule 'nonsense'"),
    (sample("2", {}, "tool"), None),
    (sample('"bike": 3', {}, "tool"), None),
    (sample("the second", {}, "tool"), "the answer 'the second' names no image"),
]


@each_case(("one", "reason"), CASES)
def test_a_reference_has_to_be_right_by_its_own_rule(one: Sample, reason: str | None) -> None:
    """As the signal ``answer`` scores a rollout that says the reference."""
    row = replace(ROW, id=one.id, form=one.form)
    (found,) = verifiable.reference([row], samples={row.key: one})
    assert found == reason or (reason and found and found.startswith(reason))
    if one.form == "answer" and not (reason and ("KeyError" in reason or "nonsense" in reason)):
        measured = asyncio.run(answer.measure(make_trajectory(one, [f"<answer>{one.answer}</answer>"])))
        assert (measured["answer_correct"] == 1) is (found is None)


def test_what_only_a_judge_settles_goes_if_wanted_and_own_rules_count() -> None:
    judged, own = sample("a red one", {"rule": "judge"}), sample("3", {"rule": "mine"})
    rows = [replace(ROW, id=name, form="answer") for name in ("judged", "own")]
    samples = {rows[0].key: judged, rows[1].key: own}
    found = verifiable.reference(rows, samples=samples, judged=False, rules={"mine": lambda sample, text: (1.0, 1)})
    assert found == ["only a judge can say what is right", None]
