"""The oracle's scores, worked by hand: what a crop shows of a target, and what an answer can rest on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import each_case
from fakes import make_sample, make_trajectory
from qwen_views import sizing

from vtcli import geometry
from vtcli.data.generators import rotflip
from vtcli.judging.oracle import open_judge
from vtcli.schema import ImageRef, Stop, Trajectory
from vtcli.signals import answer, consistency, evidence, faithful, reply
from vtcli.store.images import ImageStore

ZOOM, ROTATE = "image_zoom_in_tool", "image_rotate_tool"
RED, BLUE = [60, 60, 132, 132], [480, 480, 552, 552]  # 72 × 72 of 672 × 672
ONE_TAG: dict[str, Any] = {"boxes": [{"label": "red tag", "box": RED}], "choices": ["down", "across"]}
TAGS: dict[str, Any] = ONE_TAG | {
    "tags": [{"label": "red tag", "mark": "down", "box": RED}, {"label": "blue tag", "mark": "across", "box": BLUE}]
}
ORACLE = open_judge()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    """The tiny scale's: every square view is 112 × 112."""
    return ImageStore(tmp_path_factory.mktemp("images"), sizing(10_000, 12_600))


def play(store: ImageStore, truth: dict[str, Any], *texts: Any, **changes: Any) -> Trajectory:
    side = changes.pop("side", 672)
    sample = make_sample(
        store, pixels=np.zeros((side, side, 3), np.uint8), truth=truth, **({"answer": "down"} | changes)
    )
    return make_trajectory(sample, texts, store)


def crop(full: list[float]) -> tuple[str, dict[str, Any]]:
    """A zoom call that cuts out these original pixels of image 0: the view is a sixth."""
    return ZOOM, {"bbox_2d": [v / 6 for v in full], "image_index": 0}


def evidence_of(trajectory: Trajectory) -> dict[str, Any]:
    return dict(asyncio.run(evidence.measure(trajectory, judge=ORACLE)))


def shown_of(trajectory: Trajectory) -> tuple[Any, Any]:
    """Faithfulness, and the judgement of the whole reply."""
    found = asyncio.run(faithful.measure(trajectory, judge=ORACLE))
    return found["faithful"], asyncio.run(reply.measure(trajectory, judge=ORACLE))["reply_evidence"]


def consistency_of(trajectory: Trajectory) -> Any:
    return asyncio.run(consistency.measure(trajectory, judge=ORACLE))["consistency"]


@each_case(
    ("box", "score"),
    [
        ([12, 12, 180, 180], 1.0),  # all of it; scale 112/168 = .67; share 72²/168² = .18
        ([0, 0, 336, 336], 0.5),  # scale .33 is under .5 and above .25; share .046
        ([0, 0, 672, 672], 0.25),  # the whole picture: scale .17, share .011
        ([96, 12, 264, 180], 0.5),  # half of the tag: x from 96 to 132
        ([102, 12, 270, 180], 0.25),  # 30 of 72 columns: coverage .42
        ([300, 300, 468, 468], 0.25),  # elsewhere
    ],
)
def test_evidence_is_coverage_of_the_target_by_a_crop_that_resolves_it(
    store: ImageStore, box: list[float], score: float
) -> None:
    played = play(store, ONE_TAG, crop(box), "<answer>down</answer>")
    found = evidence_of(played)
    assert found["evidence"] == [score]
    assert found["evidence_by"] == "oracle"
    assert shown_of(played) == (int(score == 1.0), {1.0: 1.0, 0.5: 0.75, 0.25: 0.25}[score])  # vl_agent.py's scale
    assert (found["judged"], found["unjudged"]) == (["evidence"], [])


def test_every_call_is_a_step_and_a_failed_one_shows_nothing(store: ImageStore) -> None:
    played = play(
        store,
        ONE_TAG,
        crop([300, 300, 468, 468]),
        (ROTATE, {"angle": 45}),
        crop([12, 12, 180, 180]),
        "<answer>down</answer>",
    )
    found = evidence_of(played)
    assert found["evidence"] == [0.25, 0.0, 1.0]
    assert shown_of(played) == (1, 1.0)


def test_a_crop_of_a_turned_crop_is_mapped_back(store: ImageStore) -> None:
    turned = (ROTATE, {"angle": 90, "image_index": 0})  # the red tag goes to the upper right: x from 540 to 612
    played = play(store, ONE_TAG, turned, (ZOOM, {"bbox_2d": [82, 2, 110, 30]}), "<answer>down</answer>")
    assert evidence_of(played)["evidence"] == [0.25, 1.0]


def test_one_of_several_targets_is_enough(store: ImageStore) -> None:
    truth = {"boxes": [{"box": RED}, {"box": BLUE}]}
    assert evidence_of(play(store, truth, crop([432, 432, 600, 600]), "<answer>x</answer>"))["evidence"] == [1.0]


def test_without_calls_nothing_is_faithful_and_without_boxes_nothing_is_measured(store: ImageStore) -> None:
    played = play(store, ONE_TAG, "<answer>down</answer>")
    none = evidence_of(played)
    assert (none["evidence"], none["judged"], shown_of(played)) == ([], [], (0, 0.0))  # no image: a red flag
    without = play(store, {}, "<answer>down</answer>")
    assert evidence_of(without) == {"evidence": None, "evidence_by": None}
    assert shown_of(without) == (None, None)
    broken = replace(play(store, ONE_TAG, "<answer>down</answer>"), stop=Stop.BROKEN)
    assert evidence_of(broken)["evidence"] is None


def by_code(verified: bool | None, box: list[float] | None, **more: Any) -> dict[str, Any]:
    step = {"name": "crop", "arguments": {}, "library": "pil", "image": 0, "box": box}
    return {"op": "code", "verified": verified, "operations": [step], **more}


@each_case(
    ("transform", "score"),
    [
        (by_code(True, [12, 12, 180, 180]), 1.0),
        (by_code(None, [12, 12, 180, 180]), 0.25),  # a claim
        (by_code(False, [12, 12, 180, 180]), 0.25),  # a lie
        (by_code(True, None), 0.25),  # cannot be told
        (by_code(True, [2, 2, 30, 30], size=[112, 112]), 1.0),  # code that was given the view, a sixth
        (by_code(True, [2, 2, 30, 30]), 0.25),  # the same numbers of original pixels
    ],
)
def test_only_what_the_host_has_done_again_is_evidence(
    store: ImageStore, transform: dict[str, Any], score: float
) -> None:
    played = play(store, ONE_TAG, crop([12, 12, 180, 180]), "<answer>down</answer>")
    images = (played.images[0], replace(played.images[1], transform=transform))
    assert evidence_of(replace(played, images=images))["evidence"] == [score]


def test_full_sight_can_be_made_stricter() -> None:
    ref = ImageRef("", "", 168, 168, 112, 112)
    images = (ImageRef("", "", 672, 672, 112, 112), replace(ref, parent=0, transform=by_code(True, [12, 12, 180, 180])))
    assert open_judge().sight.best(images, 1, [RED]) == 1.0
    assert open_judge(min_scale=1.0).sight.best(images, 1, [RED]) == 0.5
    assert open_judge(min_share=0.9).sight.best(images, 1, [RED]) == 0.25


@each_case(
    ("box", "said", "expected"),
    [
        ([12, 12, 180, 180], "down", 1),  # saw the red tag, says what is on it
        ([12, 12, 180, 180], "across", 0),  # saw it and says something else
        ([432, 432, 600, 600], "across", 1),  # saw the wrong tag, says what is on it: wrong, and consistent
        ([432, 432, 600, 600], "Down.", 0),  # right by luck
        ([300, 300, 468, 468], "down", 0),  # saw nothing
        (None, "down", 0),  # never looked
    ],
)
def test_an_answer_is_consistent_with_what_the_last_look_shows(
    store: ImageStore, box: list[float] | None, said: str, expected: int
) -> None:
    assert consistency_of(play(store, TAGS, *([crop(box)] if box else []), f"<answer>{said}</answer>")) == expected


def test_without_marks_in_the_truth_it_must_be_right_and_seen(store: ImageStore) -> None:
    seen, unseen = crop([12, 12, 180, 180]), crop([300, 300, 468, 468])
    assert consistency_of(play(store, ONE_TAG, seen, "<answer>down</answer>")) == 1
    assert consistency_of(play(store, ONE_TAG, seen, "<answer>across</answer>")) == 0
    assert consistency_of(play(store, ONE_TAG, unseen, "<answer>down</answer>")) == 0


@each_case(
    ("turn", "said", "expected"),
    [
        ({"angle": 270}, "top-left", 1),  # upright, right
        ({"angle": 270}, "top-right", 0),  # upright, wrong
        ({"angle": 90}, "bottom-right", 1),  # upside down now: that is where the stamp is seen
        ({"angle": 90}, "top-left", 0),  # right, but not what is seen
        (None, "top-right", 1),  # as it came: a quarter turn moves the corner there
        (None, "top-left", 0),
    ],
)
def test_a_page_shows_its_stamp_where_the_last_turn_put_it(
    store: ImageStore, turn: dict[str, int] | None, said: str, expected: int
) -> None:
    truth = {"transform": "rot90", "kind": "corner", "corner": "top-left", "choices": list(rotflip.CORNERS)}
    texts = [(ROTATE, turn)] if turn else []
    played = play(store, truth, *texts, f"<answer>{said}</answer>", task="rotflip", answer="top-left", side=112)
    assert consistency_of(played) == expected


def test_a_turned_corner_is_where_the_generator_puts_it() -> None:
    for name in rotflip.TRANSFORMS:
        for corner in rotflip.CORNERS:
            assert geometry.turned_corner(name, corner) == rotflip.moved(corner, name)


def test_no_answer_follows_from_nothing_and_tool_questions_have_no_consistency(store: ImageStore) -> None:
    assert consistency_of(play(store, TAGS, crop([12, 12, 180, 180]), "<think>down</think>")) == 0
    assert consistency_of(play(store, TAGS, '<answer>"red tag": 1</answer>', form="tool")) is None


def test_the_oracle_leaves_answers_to_the_rules(store: ImageStore) -> None:
    played = play(store, {}, "<answer>going down</answer>", answer="downwards")
    with_oracle = asyncio.run(answer.measure(played, judge=ORACLE))
    assert with_oracle == asyncio.run(answer.measure(played))
