"""Signals that ask a judge: when they ask, what they show it, and what becomes of no verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from fakes import make_sample, make_trajectory

from vtcli.errors import EngineError
from vtcli.protocols import About, Case, Ruling
from vtcli.schema import EnvTurn, Sample, Signals, Trajectory
from vtcli.signals import answer, consistency, evidence, faithful, measure_all, reply, usage
from vtcli.signals.measuring import SignalMeter, unjudged_share
from vtcli.store.images import ImageStore

ZOOM, ROTATE = "image_zoom_in_tool", "image_rotate_tool"


class FakeJudge:
    """Says what it is told to, and keeps what it was shown."""

    name, trouble = "fake", "because"

    def __init__(self, *scores: float | None, meets: int = 0) -> None:
        self.scores, self.cases, self.opened = list(scores), list[Case](), list[Any]()
        self.meets, self.here = meets, 0

    def knows(self, about: About, sample: Sample) -> bool:
        return True

    async def start(self, rubrics: Sequence[str], *, eager: bool = True) -> None:
        self.opened.append((list(rubrics), eager))

    async def __call__(self, case: Case) -> Ruling:
        self.cases.append(case)
        self.here += 1
        while self.here < self.meets:  # until so many are being asked at the same time
            await asyncio.sleep(0)
        return Ruling(self.scores.pop(0) if self.scores else None)

    async def close(self) -> None:
        self.opened.append("closed")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(tmp_path_factory.mktemp("images"))


def measured(signal: Callable[..., Any], trajectory: Trajectory, judge: FakeJudge) -> dict[str, Any]:
    values = dict(asyncio.run(signal(trajectory, judge=judge)))
    json.dumps(values, allow_nan=False)
    return values


def said(text: str, **changes: Any) -> Trajectory:
    fields = {"truth": {}, "answer": "a red apple", "question": "Which fruit?"} | changes
    return make_trajectory(make_sample(None, **fields), [f"<think>Fruit.</think><answer>{text}</answer>"])


# The answer


@each_case("score, correct", [(1.0, 1), (0.0, 0)])
def test_open_text_that_no_rule_settles_is_the_judges(score: float, correct: int) -> None:
    judge = FakeJudge(score)
    values = measured(answer.measure, said("It is an apple"), judge)
    assert (values["answer_score"], values["answer_correct"]) == (score, correct)
    assert (values["judged"], values["unjudged"]) == (["answer_score", "answer_correct"], [])
    (case,) = judge.cases
    assert case.texts == {"question": "Which fruit?", "truth": "a red apple", "answer": "It is an apple"}
    assert (case.about, case.rubric, case.images) == ("answer", "deepeyes_answer", ())


def test_a_judge_is_told_all_reference_answers() -> None:
    judge = FakeJudge(1.0)
    truth = {"answers": ["12 May", "May 12, 1998", "12 May", "12/5/98"]}
    measured(answer.measure, said("12.5.1998", answer="12 May", truth=truth), judge)
    assert judge.cases[0].texts["truth"] == "12 May (also right: May 12, 1998; 12/5/98)"


@each_case(
    "trajectory, expected",
    [
        (said("The red apple."), (1.0, 1)),  # right by rule
        (said("N", answer="K", truth={"choices": ["K", "N"]}), (0.0, 0)),
        (said("7", task="count", truth={"value": [7], "total": 9}), (1.0, 1)),
        (said("8", task="count", truth={"value": [7], "total": 10}), (0.9, 0)),
        (said("x" * 1000), (0.0, 0)),  # as long as this it is a dodge
        (said("Reply 1. " * 11_000), (0.0, 0)),  # 100 kB
        (make_trajectory(make_sample(None, truth={}), ["<think>no answer</think>"]), (0.0, 0)),
    ],
)
def test_rules_come_first_and_cost_nothing(trajectory: Trajectory, expected: tuple[float, int]) -> None:
    judge = FakeJudge(0.5)
    values = measured(answer.measure, trajectory, judge)
    assert (values["answer_score"], values["answer_correct"]) == pytest.approx(expected)
    assert not judge.cases


# Evidence


def test_the_judge_of_evidence_sees_the_question_and_the_tools_images_only(store: ImageStore) -> None:
    sample = make_sample(store, question="What is on the sign?\nOptions:\nA. a dog\nB. a cat")
    calls = [(ZOOM, {"bbox_2d": [0, 0, 40, 40]}), (ROTATE, {"angle": 45}), (ZOOM, {"bbox_2d": [9, 9, 50, 50]})]
    played = make_trajectory(sample, [*calls, "<think>secret thought</think><answer>a dog</answer>"], store)
    judge = FakeJudge(0.25, 1.0)
    values = measured(evidence.measure, played, judge)
    assert values["evidence"] == [0.25, 0.0, 1.0]  # the failed call showed nothing and nobody was asked
    assert (values["evidence_by"], values["unjudged"]) == ("fake", [])
    assert [case.texts for case in judge.cases] == [{"question": sample.question}] * 2  # 4.3: the original question
    assert [case.images for case in judge.cases] == [(played.images[1],), (played.images[2],)]
    bare = FakeJudge(0.25, 1.0)
    measured(partial(evidence.measure, options=False), played, bare)
    assert [case.texts for case in bare.cases] == [{"question": "What is on the sign?"}] * 2


@each_case(
    "scores, shown, unjudged",
    [((1.0, None), 1, []), ((0.0, None), None, ["faithful"]), ((0.0, 0.0), 0, []), ((0.0, 1.0), 1, [])],
)
def test_an_answer_is_faithful_if_any_crop_shows_the_object(
    scores: tuple[float | None, ...], shown: int | None, unjudged: list[str], store: ImageStore
) -> None:
    """Algorithm 1 of CodeV: z of every crop, then any_crop. A crop without a verdict leaves it open."""
    calls = [(ZOOM, {"bbox_2d": [0, 0, 40, 40]}), (ZOOM, {"bbox_2d": [9, 9, 50, 50]})]
    played = make_trajectory(make_sample(store), [*calls, "<answer>K</answer>"], store)
    values = measured(faithful.measure, played, FakeJudge(*scores))
    assert values == {"faithful": shown, "judged": ["faithful"], "unjudged": unjudged}
    without = make_trajectory(make_sample(store), ["<answer>K</answer>"], store)
    assert measured(faithful.measure, without, FakeJudge()) == {"faithful": 0, "judged": [], "unjudged": []}


def test_two_rubrics_of_codev_are_asked_in_one_run_and_every_crop_for_itself(store: ImageStore) -> None:
    """The reward's judge sees all images of one tool output (Eq. 6: a value a step), the metric's one image
    (algorithm 1, line 6). The step has two images here: one question for the reward, two for the metric."""
    calls = [(ZOOM, {"bbox_2d": [0, 0, 40, 40]}), (ZOOM, {"bbox_2d": [9, 9, 50, 50]})]
    played = make_trajectory(make_sample(store), [*calls, "<answer>K</answer>"], store)
    first, second = (turn for turn in played.turns if isinstance(turn, EnvTurn))
    (result,) = first.observation.results
    both = replace(first, observation=replace(first.observation, results=(replace(result, images=(1, 2)),)))
    turns = tuple(both if turn is first else turn for turn in played.turns if turn is not second)
    judge = FakeJudge(0.5, 0.0, 1.0)
    values = asyncio.run(opened_now(judge, replace(played, turns=turns)))
    assert (values["evidence"], values["faithful"]) == ([0.5], 1)
    asked = [(case.rubric, len(case.images)) for case in judge.cases]
    assert asked == [("codev_evidence", 2), ("codev_faithful", 1), ("codev_faithful", 1)]


async def opened_now(judge: FakeJudge, played: Trajectory) -> Any:
    signals = [partial(evidence.measure, judge=judge), partial(faithful.measure, judge=judge)]
    return (await measure_all(played, signals)).values


def test_the_released_judge_of_codev_sees_the_whole_reply(store: ImageStore) -> None:
    """vl_agent.py: 500 characters of the question, the reply's last 6000, the question's image and three more."""
    calls = [(ZOOM, {"bbox_2d": [k, k, 40, 40]}) for k in range(4)]
    sample = make_sample(store, question="Q" * 600, task="chart")
    end = "<think>" + "a" * 7000 + "</think><answer>K</answer>"
    played = make_trajectory(sample, [*calls, end], store)
    judge = FakeJudge(0.75)
    measure = partial(reply.measure, rubric="codev_code_calculation", rubrics={"chart": "codev_code_search"})
    assert measured(measure, played, judge) == {"reply_evidence": 0.75, "judged": ["reply_evidence"], "unjudged": []}
    (case,) = judge.cases
    assert (case.rubric, case.texts["question"]) == ("codev_code_search", "Q" * 500)
    assert (len(case.texts["reply"]), case.texts["reply"][-18:]) == (6000, "<answer>K</answer>")
    assert case.images == played.images[:4]
    other = replace(played, sample=replace(sample, task="geometry"))
    judge = FakeJudge(None)
    assert measured(measure, other, judge)["unjudged"] == ["reply_evidence"]
    assert [case.rubric for case in judge.cases] == ["codev_code_calculation"]
    for source, rubric in [("chart", "codev_code_search"), ("GeoQA", "codev_code_calculation")]:
        judge = FakeJudge(0.5)  # verl's data_source, kept as truth.source, whatever the own name of the set is
        row = replace(played, sample=replace(sample, task="own", truth={**sample.truth, "source": source}))
        measured(measure, row, judge)
        assert [case.rubric for case in judge.cases] == [rubric]
    text = reply.reply(make_trajectory(sample, [calls[0], "<answer>K</answer>"], store))
    assert text.startswith("<think>Look.</think><tool_call>") and text.endswith("\nimage 1\n<answer>K</answer>")
    assert "<image>" not in text  # a mark in text is no image


@each_case(
    "question, bare",
    [
        ("What is it?\n(A) a dog\n(B) a cat", "What is it?"),
        ("What is it?\nA. a dog\nB. a cat", "What is it?"),
        ("What is it? **Options:** A. black B. red", "What is it?"),
        ("Name it.\nChoices: (A) black (B) red", "Name it."),
        ("What is it?\n**Options:**\nA. black", "What is it?"),
        ("Which options: are there?", "Which options: are there?"),
        ("A. is what?", "A. is what?"),
    ],
)
def test_options_are_cut_where_they_begin_a_line(question: str, bare: str) -> None:
    assert evidence.without_options(question) == bare


# Consistency


def test_the_judge_of_consistency_sees_the_end_of_the_thinking(store: ImageStore) -> None:
    texts = ["<think>" + "a" * 600 + " so K</think><answer>K</answer>"]
    judge = FakeJudge(1.0)
    values = measured(consistency.measure, make_trajectory(make_sample(store), texts, store), judge)
    assert values == {"consistency": 1, "judged": ["consistency"], "unjudged": []}
    (case,) = judge.cases
    assert case.texts["reasoning"] == "a" * 495 + " so K"
    assert case.texts["answer"] == "K"
    assert case.right is True


# All of them together


def opened(judge: FakeJudge, *signals: Any) -> SignalMeter:
    return SignalMeter(signals, lambda images, home: judge, store, Path("/nowhere"))  # type: ignore[arg-type]


def test_a_batch_is_judged_at_the_same_time() -> None:
    judge = FakeJudge(*[1.0] * 8, meets=8)
    measuring = opened(judge, usage.measure, partial(answer.measure, rubric="mine"), consistency.measure)

    async def run() -> list[Signals]:
        await measuring.start(eager=False)
        found = await asyncio.wait_for(measuring([said(f"pear {n}") for n in range(4)]), 30)
        await measuring.close()
        return found

    found = asyncio.run(run())
    assert [s.values["answer"] for s in found] == [f"pear {n}" for n in range(4)]
    assert found[0].values["judged"] == ["answer_score", "answer_correct", "consistency"]
    assert judge.opened == [(["mine", "thyme_consistency"], False), "closed"]
    assert {case.rubric for case in judge.cases} == {"mine", "thyme_consistency"}
    assert measuring.facts == {"judge": "fake"}


def test_no_judge_is_opened_where_no_signal_asks_one() -> None:
    measuring = SignalMeter([usage.measure], lambda **_: pytest.fail("opened"), store, Path())  # type: ignore[arg-type]
    asyncio.run(measuring.start())
    assert measuring.judge is None and measuring.facts == {}


def test_too_many_without_a_verdict_end_the_run_with_the_reasons() -> None:
    measuring = opened(FakeJudge(), consistency.measure)
    asked = [Signals({"judged": ["consistency"], "unjudged": ["consistency"] if n < 1 else []}) for n in range(10)]
    silent = [Signals({"calls": 1})] * 90
    share = unjudged_share([*asked, *silent])
    assert share == 0.1
    measuring.check(share, 0.1, "step 3")
    measuring.check(None, 0.0, "step 3")
    with pytest.raises(
        EngineError, match=r"step 3: the judge fake gave no verdict on 10.0% .*max_unjudged=5.0%.* because"
    ):
        measuring.check(share, 0.05, "step 3")
    assert unjudged_share(silent) is None
