"""One contract over every signal, and one from outside: it gives what it declares, again the same, of any rollout."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import json
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from cases import each_case
from fakes import make_sample, make_trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import somebody

import vtcli.signals
from vtcli.errors import ConfigError
from vtcli.protocols import About, Case, Ruling
from vtcli.schema import CallResult, Completion, EnvTurn, Observation, PolicyTurn, Sample, Stop, Trajectory
from vtcli.signals import JOINED, OPTIONAL, claimed, measure_all, names_of
from vtcli.store.images import ImageStore


def measures() -> dict[str, Any]:
    """Every signal of the package, by its module."""
    modules = {
        m.name: importlib.import_module(f"vtcli.signals.{m.name}") for m in pkgutil.iter_modules(vtcli.signals.__path__)
    }
    return {name: module.measure for name, module in modules.items() if hasattr(module, "NAMES")}


SIGNALS = {**measures(), "from outside": somebody().letters}
JUDGED = {name for name, signal in SIGNALS.items() if "judge" in inspect.signature(signal).parameters}
ASKED = {
    "answer": ("answer_score", "answer_correct"),
    "consistency": ("consistency",),
    "evidence": ("evidence",),
    "faithful": ("faithful",),
    "reply": ("reply_evidence",),
}
"""The values of each signal that asks a judge."""
TRUTHS: dict[str, Mapping[str, Any]] = {
    "boxes": {"boxes": [{"label": "a", "box": [10, 10, 60, 60]}]},
    "orientation": {"transform": "rot90"},
    "primitives": {"primitives": [{"kind": "point", "x": 9.0, "y": 9.0}]},
    "code": {"boxes": [{"label": "a", "box": [10, 10, 60, 60]}], "required": ["crop"], "search": True},
    "frames": {"frames": [3, 4]},
}
"""What a row must state for these signals to know anything; without it they give None, never 0 or an empty list."""
ALWAYS = {"operations"}  # are read off the calls, whatever the truth states


class AnyJudge:
    """Returns one score, counts the questions, and knows the kinds that the test names."""

    name, trouble = "any", ""

    def __init__(self, score: float | None = None, knows: bool = True) -> None:
        self.score, self.asked, self.known = score, 0, knows

    def knows(self, about: About, sample: Sample) -> bool:
        return self.known

    async def start(self, rubrics: Sequence[str], *, eager: bool = True) -> None: ...

    async def __call__(self, case: Case) -> Ruling:
        self.asked += 1
        assert all(isinstance(text, str) for text in case.texts.values())
        assert all(image in case.trajectory.images for image in case.images)
        return Ruling(self.score)

    async def close(self) -> None: ...


def bound(name: str, judge: AnyJudge | None = None) -> Any:
    return partial(SIGNALS[name], judge=judge or AnyJudge()) if name in JUDGED else SIGNALS[name]


def measured(name: str, trajectory: Trajectory, judge: AnyJudge | None = None) -> dict[str, Any]:
    """The values, which are plain JSON, and all that the module declares."""
    values = dict(asyncio.run(bound(name, judge)(trajectory)))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    missing = names_of(SIGNALS[name]) - values.keys() - OPTIONAL
    assert not missing and values.keys() - names_of(SIGNALS[name]) <= set(JOINED), (name, missing, values.keys())
    return values


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def played(store: ImageStore) -> Trajectory:
    """A crop, a drawing on it, a turn, a call that is refused, and an answer that no rule settles."""
    turns = [
        ("image_zoom_in_tool", {"bbox_2d": [10, 10, 60, 60]}),
        ("image_mark_points_tool", {"point_2d": [5, 5]}),
        ("image_rotate_tool", {"angle": 90, "image_index": 0}),
        ("image_zoom_in_tool", {"bbox_2d": [1, 2]}),
        "<think>I see it.</think><answer>It is an apple</answer>",
    ]
    return make_trajectory(make_sample(store, truth={}, answer="a red apple"), turns, store)


def rollouts(played: Trajectory) -> Iterator[tuple[str, Trajectory]]:
    """Rollouts of every end: whole, cut off anywhere, broken, without a turn, image or token, and stored by others."""
    yield "whole", played
    for stop in Stop:
        yield f"stop {stop}", replace(played, stop=stop, error="gone" if stop is Stop.BROKEN else None)
    for length in range(len(played.turns)):
        for stop in (Stop.BROKEN, Stop.MAX_TURNS, Stop.MAX_TOKENS):
            yield f"{length} turns, {stop}", replace(played, turns=played.turns[:length], stop=stop)
    yield "a tool's question", replace(played, sample=replace(played.sample, form="tool"))
    for name, truth in TRUTHS.items():
        yield f"truth of {name}", replace(played, sample=replace(played.sample, truth=truth))
    bare = replace(played, prompt_ids=(), sample=replace(played.sample, images=()), images=(), turns=())
    yield "nothing at all", bare
    texts = [PolicyTurn(Completion((), (), "stop"), "<answer>K</answer>", (), "K", 0)]
    yield "texts alone", replace(bare, turns=tuple(texts))
    odd = [CallResult(None, None, status, "", 0.0, (0,), {}) for status in ("ok", "no_output", "error", "timeout")]
    other = EnvTurn(Observation("", (), (*odd, CallResult("made_up", {"bbox_2d": "?"}, "refused", "no", 0.0))), ())
    yield "results of nobody's calls", replace(played, turns=(played.turns[0], other, played.turns[-1]))


def test_every_signal_of_the_package_is_under_this_contract() -> None:
    assert set(ASKED) == JUDGED
    assert set(TRUTHS) < set(SIGNALS)
    names = [name for signal in SIGNALS.values() for name in names_of(signal)]
    assert len(names) == len(set(names)), "two signals declare one name"
    for signal in SIGNALS.values():
        assert names_of(signal) and claimed(signal) <= names_of(signal)


@each_case("name", SIGNALS)
def test_it_measures_every_rollout_and_gives_the_same_again(name: str, played: Trajectory) -> None:
    for what, rollout in rollouts(played):
        try:
            for score in (None, 0.0, 1.0):
                before = repr(rollout)
                assert measured(name, rollout, AnyJudge(score)) == measured(name, rollout, AnyJudge(score))
                assert repr(rollout) == before
        except Exception as error:
            raise AssertionError(f"{name} of {what}: {error!r}") from error


def test_no_signal_hangs_on_another_or_on_their_order(played: Trajectory) -> None:
    def all_of(order: Sequence[str]) -> dict[str, Any]:
        values = dict(asyncio.run(measure_all(played, [bound(name, AnyJudge(1.0)) for name in order])).values)
        return values | {key: sorted(values[key]) for key in JOINED}

    names = sorted(SIGNALS)
    expected = all_of(names)
    assert expected == all_of(names[::-1]) == all_of([*names[3:], *names[:3]])
    for name in names:
        assert {k: expected[k] for k in names_of(SIGNALS[name]) if k in expected}.items() <= measured(
            name, played, AnyJudge(1.0)
        ).items()
        with pytest.raises(ConfigError) as caught:
            asyncio.run(measure_all(played, [bound(name), bound(name)]))
        assert repr(sorted(set(measured(name, played)) - set(JOINED))) in str(caught.value)


@each_case("name", TRUTHS)
def test_what_a_row_does_not_state_is_none_and_no_zero(name: str, played: Trajectory) -> None:
    unknown = measured(name, played)
    assert {key: value for key, value in unknown.items() if value is not None}.keys() <= ALWAYS
    known = measured(name, replace(played, sample=replace(played.sample, truth=TRUTHS[name])))
    assert None not in known.values(), known


@each_case("name", sorted(JUDGED))
def test_no_verdict_is_none_and_listed_and_a_verdict_is_not(name: str, played: Trajectory) -> None:
    def flat(value: Any) -> list[Any]:
        return list(itertools.chain.from_iterable(map(flat, value))) if isinstance(value, list) else [value]

    silent, sure = measured(name, played, AnyJudge(None)), measured(name, played, AnyJudge(1.0))
    assert silent["judged"] == sure["judged"] == list(ASKED[name])
    assert silent["unjudged"] == list(ASKED[name]) and sure["unjudged"] == []
    for key in ASKED[name]:
        assert None in flat(silent[key]) and 0 not in flat(silent[key])[:1], silent
        assert None not in flat(sure[key]) and sum(flat(sure[key])) >= 1, sure
    unasked = AnyJudge(1.0, knows=False)
    found = measured(name, played, unasked)
    assert not unasked.asked and not found.get("judged") and not found.get("unjudged")


@each_case("name", sorted(JUDGED))
def test_a_broken_rollout_costs_no_question(name: str, played: Trajectory) -> None:
    judge = AnyJudge(1.0)
    for length in (0, len(played.turns)):
        measured(name, replace(played, turns=played.turns[:length], stop=Stop.BROKEN), judge)
    assert judge.asked == 0


MARKS = st.sampled_from(
    ["<answer>", "</answer>", "<think>", "</think>", "<tool_call>", "{", "}", "```", "\n", "K", "<image>"]
)


@given(st.lists(st.lists(MARKS | st.text(max_size=9), max_size=9).map("".join), min_size=1, max_size=3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_text_is_measured(texts: list[str], thinks: bool) -> None:
    turns = tuple(PolicyTurn(Completion((1,), (0.0,), "stop"), text, (), text or None, 0) for text in texts)
    rollout = Trajectory("t", make_sample(truth={}), (1,), make_sample().images, turns, Stop.ANSWERED, 0, thinks=thinks)
    for name in SIGNALS:
        measured(name, rollout, AnyJudge(0.5))


def test_a_long_reply_is_kept_once_at_most() -> None:
    text = "<answer>" + "<think>1, 2 " * 20_000 + "</answer>"
    rollout = make_trajectory(make_sample(truth={}), [text])
    sizes = {name: len(json.dumps(measured(name, rollout, AnyJudge(0.5)))) for name in SIGNALS}
    assert sizes.pop("answer") <= len(text) + 1000
    assert max(sizes.values()) < 1000, sizes
