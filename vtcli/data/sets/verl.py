"""Sets in the columns of verl and DeepEyes: prompt, images, reward_model, extra_info; and what their runs write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from vtcli.data.sets.fields import Record, first, parsed
from vtcli.data.sets.own import mapped
from vtcli.data.sets.row import SetRow, UnusableRow
from vtcli.signals.code import OPERATIONS, REQUIRABLE

NO_ADVICE = r"(?<!\s)\s*+Think first, call \*\*image_zoom_in_tool\*\*.*$"


VERL = {
    "question": "extra_info.question prompt",
    "answer": "reward_model.ground_truth extra_info.answer",
    "images": "images",
    "source": "data_source",
}


def verl(record: Record) -> SetRow:
    """DeepEyes-47K, DeepEyesV2-RL, CodeV-RL. extra_info may be JSON text (CodeV), images one value or raw bytes."""
    return mapped(record, {**VERL, "video": "videos.0", "truth": "extra_info.truth"})


def codedance_rl(record: Record) -> SetRow:
    """Peterwatwec/CodeDance-RL: messages in place of prompt, images are raw bytes; the copy of the image in
    extra_info.tools_kwargs is not read."""
    return mapped(record, {**VERL, "question": "extra_info.question messages"})


UNDO: Mapping[str, str] = {"rotate_90": "rotate_270", "rotate_270": "rotate_90"}
"""Inverses of operations that are not their own ([C] CodeVision agent_loop.py: 360 - degrees)."""

TRANSFORM: Mapping[str, str] = {
    "rotate_90": "rot90",
    "rotate_180": "rot180",
    "rotate_270": "rot270",
    "flip_horizontal": "hflip",
    "flip_vertical": "vflip",
}
"""Transforms of the operations that can be undone."""


def codevision_rl(record: Record) -> SetRow:
    """kkwok/CodeVision-RL: extra_info.transform was done to the image, and its inverse is required ([C]
    agent_loop.py); None for items that need no tool ([P] 3.3.1). The box is of the upright image ([C] _best_crop_iou:
    it is compared with the crop's numbers, after the turn)."""
    done = _done(first(record, "extra_info.transform"))
    boxes = first(record, "extra_info.bbox_2d", "extra_info.bbox")
    turns = [name for name in done if name not in OPERATIONS] if parsed(boxes) is not None else []
    if "crop" in done and not parsed(boxes):
        raise UnusableRow("a crop without a box", ": it needs a crop, but has no box.")
    if unknown := [name for name in turns if name not in TRANSFORM and name in REQUIRABLE]:
        raise UnusableRow(
            "a box that cannot be moved",
            f": its boxes are of the upright image, and {', '.join(unknown)} moves them to places that are not known.",
        )
    moves = tuple(TRANSFORM[name] for name in turns if name in TRANSFORM)
    values: dict[str, Any] = {"boxes": boxes, "required": undoing(done), "box_moves": moves}
    return mapped(record, VERL, **values, box_label="target", markers="any")  # with the resized image beside it


def undoing(done: Sequence[str]) -> list[str]:
    """Operations that a row requires after some were done. Turns are undone last first. A crop is no change to undo; it
    comes after them: "an image with incorrect orientation must be rotated first, regardless of the question"
    (CodeVision 3.3.2 (a)).

    >>> undoing(["crop", "rotate_90", "flip_vertical"])
    ['flip_vertical', 'rotate_270', 'crop']
    """
    turns = [UNDO.get(name, name) for name in reversed(done) if name not in OPERATIONS]
    return [*turns, *(name for name in done if name in OPERATIONS)]


def _done(given: Any) -> list[str]:
    """Operations in the shapes of ``transform`` (a list, one text, or a dict of which the keys count), in clockwise
    names. CodeVision counts counter-clockwise: its ``rotate_90`` is PIL's ``rotate(90)`` ([C] tool_use_judge.py)."""
    if given is None or given == "None":
        return []
    if isinstance(given, Mapping):
        given = [key for key, value in cast("Record", given).items() if value not in (None, False)]
    names = [str(name) for name in cast("Sequence[Any]", given)] if isinstance(given, list | tuple) else [str(given)]
    return [UNDO.get(name, name) for name in names]


def verl_rollouts(record: Record) -> SetRow:
    """Dumps of verl (trainer.rollout_data_dir, _dump_generations): input and output as decoded text, gts. They hold no
    picture: eval.imported.questions names the set that was asked, or images a column of one's own."""
    columns = {"question": "input", "answer": "gts ground_truth", "response": "output", "images": "images image"}
    strip = (r"^(?:.*?\n)?user\n", r"\nassistant\n?$", NO_ADVICE)
    return mapped(record, {**columns, "source": "data_source"}, unwrap=True, strip=strip, decoded=True, crops="cut")


def deepeyes_results(record: Record) -> SetRow:
    """Results of DeepEyes' eval_vstar.py and eval_hrbench.py (cc3ff4d): question, answer, pred_output, whose pictures
    are blanked. ``reading.root`` is the folder of V*'s images. Lines of HR-Bench name no image: eval.imported.questions
    is its TSV, with column: question."""
    columns = {"question": "pred_output", "answer": "answer_choice answer", "messages": "pred_output"}
    columns |= {"images": "image", "source": "category test_type"}
    return mapped(record, columns, strip=(NO_ADVICE, r"^\s*(?:<image>\s*)*Question:\s*"), crops="cut")
