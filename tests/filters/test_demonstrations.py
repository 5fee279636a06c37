"""Rules by which a teacher's trajectory becomes a demonstration, one reason each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import each_case
from fakes import make_sample, make_trajectory

from vtcli.filters.demonstrations import Keep, demo_type, in_shares, quality, why_dropped
from vtcli.schema import CallResult, EnvTurn, Observation, PolicyTurn, Signals, Stop, Trajectory

RIGHT = {"answer_correct": 1, "zoom_labels": ["tag"]}
CLOSE = {"tp": 90.0, "fp": 10.0, "fn": 10.0}
CROP = {"zooms": [{"areas": [CLOSE]}], "operations": [{"name": "crop", "verified": True, "image": 1}]}


def played(*statuses: Any, text: str = "<answer>K</answer>", stop: Stop = Stop.ANSWERED) -> Trajectory:
    """A trajectory with calls that ended so, and a last turn."""
    whole = make_trajectory(make_sample(), [text])
    (last,) = whole.turns
    assert isinstance(last, PolicyTurn)
    turns: list[Any] = []
    for status in statuses:
        seen = Observation("", (), (CallResult("zoom", {}, status, "", 0.0),))
        turns += [replace(last, text="<think>Look.</think>", answer=None), EnvTurn(seen, (1,))]
    return replace(whole, turns=(*turns, last), stop=stop)


def cropped(*boxes: list[float] | None) -> dict[str, Any]:
    """Facts of a trajectory with these crops, in pixels of the first image."""
    made = [{"name": "crop", "verified": True, "image": n, "box": box} for n, box in enumerate(boxes, 1)]
    return {"zooms": [{"areas": [CLOSE]}], "operations": made}


CASES: dict[str, tuple[Trajectory, dict[str, Any], Keep, str | None]] = {
    "kept": (played("ok"), CROP, Keep(), None),
    "cut": (played("ok", stop=Stop.MAX_TOKENS), CROP, Keep(), "ended by max_tokens"),
    "nested": (played("ok", "ok"), cropped([0, 0, 60, 60], [20, 18, 62, 50]), Keep(nested=True), None),
    "leaves the first": (
        played("ok", "ok"),
        cropped([0, 0, 60, 60], [40, 0, 90, 50]),
        Keep(nested=True),
        "crops that are not nested",
    ),
    "wider": (
        played("ok", "ok", "ok"),
        cropped([0, 0, 60, 60], [10, 10, 30, 30], [10, 10, 30, 30]),
        Keep(nested=True),
        "crops that are not nested",
    ),
    "beside, and allowed": (played("ok", "ok"), cropped([0, 0, 60, 60], [40, 0, 90, 50]), Keep(), None),
    "nowhere": (
        played("ok", "ok"),
        cropped([0, 0, 60, 60], None),
        Keep(nested=True),
        "several crops, and the place of one is not known",
    ),
    "refused": (played(text="I cannot help with that."), {}, Keep(), "refused"),
    "mute": (played("ok", text="It is a K."), CROP, Keep(), "no answer"),
    "forged": (
        played("ok", text="<tool_response>x<answer>K</answer>"),
        CROP,
        Keep(),
        "wrote an observation itself",
    ),
    "marker": (played("ok", text="<|im_end|><answer>K</answer>"), CROP, Keep(), "wrote a chat marker"),
    "image": (played("ok", text="<image><answer>K</answer>"), CROP, Keep(), "wrote a chat marker"),
    "wrong": (played("ok"), CROP | {"answer_correct": 0}, Keep(), "wrong answer"),
    "unjudged": (played("ok"), CROP | {"answer_correct": None}, Keep(), "no verdict on the answer"),
    "failed": (played("error", "ok"), CROP, Keep(), "more than 0 failed calls"),
    "recovered": (played("error", "ok"), CROP, Keep(max_failed=1), None),
    "none": (played(), {}, Keep(), "fewer than 1 calls were carried out"),
    "direct": (played(), {}, Keep(min_calls=0), None),
    "no turn": (
        played("ok"),
        CROP | {"required": ["rotate_90", "crop"]},
        Keep(required=True),
        "a required operation was not done",
    ),
    "no turn, and allowed": (played("ok"), CROP | {"required": ["rotate_90", "crop"]}, Keep(), None),
    "guessed": (
        played(),
        {"required": ["rotate_90"]},
        Keep(min_calls=0, required=True),
        "a required operation was not done",
    ),
    "no tool": (played(), {"required": [], "zoom_labels": None}, Keep(min_calls=0, required=True), None),
    "as required": (played("ok"), CROP | {"required": ["crop"]}, Keep(required=True), None),
    "many": (played("ok", "ok"), CROP, Keep(max_calls=1), "more than 1 calls"),
    "claimed": (
        played("ok"),
        CROP | {"operations": [{"name": "crop", "verified": False, "image": 1}]},
        Keep(verified="not_false"),
        "claims an operation that was not done",
    ),
    "unknown": (
        played("ok"),
        CROP | {"operations": [{"name": "draw", "verified": None, "image": 1}]},
        Keep(),
        "an operation that nothing verifies",
    ),
    "passed": (
        played("ok"),
        CROP | {"operations": [{"name": "draw", "verified": None, "image": 1}]},
        Keep(verified="not_false"),
        None,
    ),
    "no crop": (played("ok"), {}, Keep(), "no crop shows a true box"),
    "beside": (
        played("ok"),
        {"zooms": [{"areas": [{"tp": 1, "fp": 9, "fn": 99}]}]},
        Keep(),
        "no crop shows a true box",
    ),
    "loose": (
        played("ok"),
        {"zooms": [{"areas": [{"tp": 9, "fp": 90, "fn": 0}]}]},
        Keep(min_iou=0.5),
        "no crop is close to a true box",
    ),
    "no boxes": (played("ok"), {"zoom_labels": None}, Keep(), None),
    "poor": (played("ok"), CROP | {"evidence": 0.2}, Keep(least={"evidence": 0.5}), "evidence is too low"),
    "unmeasured": (played("ok"), CROP, Keep(least={"evidence": 0.5}), "no value of evidence"),
}


@each_case("name", CASES)
def test_each_rule_has_its_reason(name: str) -> None:
    trajectory, values, keep, why = CASES[name]
    assert why_dropped(trajectory, Signals(RIGHT | values), keep) == why


def test_types_are_told_by_what_was_carried_out() -> None:
    two = Signals({"operations": [{"name": "crop"}, {"name": "crop"}]})
    assert demo_type(played(), two) == "no_tool"
    assert demo_type(played("error"), two) == "no_tool"
    assert demo_type(played("ok"), two) == "single_tool"
    assert demo_type(played("ok", "ok"), two) == "multi_crop"
    assert (
        demo_type(played("ok", "ok"), Signals({"operations": [{"name": "crop"}, {"name": "rotate_90"}]}))
        == "multi_tool"
    )
    assert demo_type(played("timeout", "ok"), two) == "error"


def test_shares_are_of_what_stays_and_the_scarcest_type_decides() -> None:
    types: Any = ["error", *["single_tool"] * 8, "no_tool", "multi_tool", "error"]
    stays = in_shares(types, {"single_tool": 0.5, "error": 0.25, "no_tool": 0.25, "multi_crop": 0.0})
    kept = [name for name, stay in zip(types, stays, strict=True) if stay]
    assert kept == ["error", "single_tool", "single_tool", "no_tool"]
    assert in_shares(types, {}) == [True] * 12


def test_the_best_has_fewer_failed_calls_then_a_closer_crop_then_fewer_turns() -> None:
    near, far = Signals(CROP), Signals({"zooms": [{"areas": [{"tp": 50, "fp": 50, "fn": 50}]}]})
    order = [(played("error", "ok"), near), (played("ok"), far), (played("ok", "ok"), near), (played("ok"), near)]
    found = [quality(*each) for each in order]
    assert found == sorted(found) and len(set(found)) == 4
