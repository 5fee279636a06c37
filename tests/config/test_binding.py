"""Configuration nodes become typed values and functions; every slip names the key and the nearest valid spelling."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.config.binding import KeyProblem, bind, convert, nearest, nodes, stage
from vtcli.protocols import Reward


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Optim:
    lr: float
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0


@dataclass(frozen=True)
class Phase:
    name: str
    steps: int
    reward: Reward | None = None


@dataclass(frozen=True)
class DemoConfig:
    data: str
    optim: Optim
    phases: tuple[Phase, ...] = ()
    seed: int = 0
    parent: str | None = None
    folder: Path = Path()
    weights: dict[str, float] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)


def composed(**own: Any) -> dict[str, Any]:
    section = {"data": "charts:v1", "optim": {"lr": 1e-6}, **own}
    return {"stage": "demo", "seed": 7, "home": "somewhere", "demo": section, "other": {"x": 1}}


def plug(signals_G: Sequence[float], *, weight: float = 0.2, name: str | None = None) -> float:
    return sum(signals_G) * weight


def open_plug(x: int, **rest: Any) -> tuple[int, dict[str, Any]]:
    return x, rest


PLUG = f"{__name__}.plug"


def test_section_first_then_top_level_and_the_whole_job() -> None:
    config = stage(DemoConfig, composed())
    assert config.data == "charts:v1"
    assert config.seed == 7
    assert config.optim == Optim(1e-6)
    assert config.job["other"] == {"x": 1}  # for the manifest


def test_the_section_wins_over_the_top_level() -> None:
    assert stage(DemoConfig, composed(seed=3)).seed == 3


def test_nested_dataclasses_in_a_list() -> None:
    config = stage(DemoConfig, composed(phases=[{"name": "tools", "steps": 200}, {"name": "answers", "steps": 1e2}]))
    assert config.phases == (Phase("tools", 200), Phase("answers", 100))


@each_case(
    ("own", "key", "words"),
    [
        ({"optim": {"lrr": 1e-6}}, "demo.optim.lrr", "Did you mean 'lr'?"),
        ({"dta": "x"}, "demo.dta", "Did you mean 'data'?"),
        ({"optim": {"lr": "abc"}}, "demo.optim.lr", "expected a number, got 'abc' (str)"),
        ({"optim": {"lr": True}}, "demo.optim.lr", "expected a number, got True (bool)"),
        ({"optim": 3}, "demo.optim", "expected a section with the keys lr, schedule, warmup_steps"),
        ({"optim": {}}, "demo.optim.lr", "needs a value"),
        ({"data": "???"}, "demo.data", "needs a value: give demo.data="),
        ({"optim": {"lr": 1, "schedule": "cosin"}}, "demo.optim.schedule", "Did you mean 'cosine'?"),
        ({"optim": {"lr": 1, "warmup_steps": 1.5}}, "demo.optim.warmup_steps", "expected a whole number, got 1.5"),
        ({"phases": "tools"}, "demo.phases", "expected a list"),
        ({"phases": [{"name": "a", "steps": "two"}]}, "demo.phases.0.steps", "expected a whole number"),
        ({"weights": {"a": "b"}}, "demo.weights.a", "expected a number"),
        ({"parent": ["x"]}, "demo.parent", "expected text"),
    ],
)
def test_a_slip_names_the_key_and_the_remedy(own: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(KeyProblem) as caught:
        stage(DemoConfig, composed(**own))
    assert caught.value.key == key
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{key}: ")


def test_a_missing_value_names_the_key_to_give() -> None:
    with pytest.raises(KeyProblem, match=r"demo\.data: .*demo\.data="):
        stage(DemoConfig, {"stage": "demo", "demo": {"optim": {"lr": 1}}})


@each_case(
    ("value", "kind", "expected"),
    [
        (1, float, 1.0),
        (1e3, int, 1000),
        (None, int | None, None),
        ("a", int | str, "a"),
        ([1, 2], tuple[int, int], (1, 2)),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ([1, 2], list[float], [1.0, 2.0]),
        (["b", "b"], frozenset[str], frozenset("b")),
        ({"a": 1}, Mapping[str, float], {"a": 1.0}),
        ("x/y", Path, Path("x/y")),
        ("red", Colour, Colour.RED),
        (2024, str, "2024"),  # name=2024
        ("anything", Any, "anything"),
    ],
)
def test_values_take_the_annotated_type(value: Any, kind: Any, expected: Any) -> None:
    got = convert(value, kind, "key")
    assert got == expected
    assert type(got) is type(expected)


def test_wrong_length_of_a_pair() -> None:
    with pytest.raises(KeyProblem, match="expected 2 values, got 3"):
        convert([1, 2, 3], tuple[int, int], "box")


def test_bind_fills_keywords_and_calls_nothing() -> None:
    bound = bind({"_target_": PLUG, "weight": 0.5})
    assert bound.func is plug
    assert bound([1.0, 3.0]) == 2.0


@each_case(
    ("node", "words"),
    [
        ({"_target_": PLUG, "wieght": 0.5}, "reward.wieght: "),
        ({"_target_": PLUG, "wieght": 0.5}, "no parameter 'wieght'. Did you mean 'weight'?"),
        ({"_target_": PLUG, "weight": "heavy"}, "reward.weight: expected a number, got 'heavy'"),
        ({"_target_": f"{__name__}.plugg"}, "no function 'plugg'. Did you mean 'plug'?"),
        ({"_target_": "vtcli.nowhere.f"}, "there is no module 'vtcli.nowhere'"),
        ({"_target_": "plain"}, "must be a dotted path"),
    ],
)
def test_a_node_that_cannot_be_bound_says_why(node: dict[str, Any], words: str) -> None:
    with pytest.raises(KeyProblem) as caught:
        bind(node, "reward")
    assert words in str(caught.value)


def test_open_ended_functions_take_every_keyword_and_nested_nodes_are_bound() -> None:
    _, rest = bind({"_target_": f"{__name__}.open_plug", "inner": {"_target_": PLUG, "weight": 2}})(1)
    assert rest["inner"]([1.0]) == 2.0


def test_a_node_in_a_protocol_field_becomes_a_function() -> None:
    config = stage(DemoConfig, composed(phases=[{"name": "a", "steps": 1, "reward": {"_target_": PLUG}}]))
    assert callable(config.phases[0].reward)
    assert callable(convert({"_target_": PLUG}, Callable[..., float], "key"))


def test_every_node_is_found_with_its_place() -> None:
    values = {"a": {"_target_": PLUG}, "b": [{"c": {"_target_": PLUG, "name": {"_target_": "x"}}}], "d": 1}
    assert [where for where, _ in nodes(values)] == ["a", "b.0.c"]


def test_a_problem_survives_a_process_boundary() -> None:
    problem = pickle.loads(pickle.dumps(KeyProblem("rl.lr", "expected a number")))
    assert (problem.key, str(problem)) == ("rl.lr", "rl.lr: expected a number")


@given(st.sampled_from(["lr", "schedule", "warmup_steps"]), st.integers(0, 10), st.characters(codec="ascii"))
def test_one_changed_letter_is_still_recognised(word: str, at: int, letter: str) -> None:
    at %= len(word)
    slip = word[:at] + letter + word[at + 1 :]
    if len(word) > 2:  # half of a two-letter word is a different word
        assert f"{word!r}" in nearest(slip, ["lr", "schedule", "warmup_steps"])


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json = st.recursive(scalars, st.lists, max_leaves=5)


@given(json, st.sampled_from([int, float, str, bool, Optim, tuple[int, int], Literal["a"], int | None, dict[str, int]]))
def test_whatever_is_given_the_answer_is_a_value_or_a_key_problem(value: Any, kind: Any) -> None:
    try:
        convert(value, kind, "key")
    except KeyProblem:
        pass
