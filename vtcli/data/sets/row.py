"""One row of a set in the words of docs/data.md, as a set's function returns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vtcli.data.sets.fields import Record

Space = Literal["pixels", "unit", "percent", "thousand", "resized"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRow:
    """Values as the row has them, and the conventions that they are in. None: the row does not have it."""

    question: Any = None  # text, or a list of messages, of which the user's last before an answer counts
    chat: Any = None  # messages in which the question stands too: their <image> count
    answer: Any = None  # text, a number, a list of answers, or messages, of which the first answer counts
    images: Any = ()  # images and lists of images, in order
    video: Any = None
    medium: Any = None  # whether a row with both shows a video: video or image, true or false
    boxes: Any = None
    width: Any = None  # of the first image, in pixels as the set measured it
    height: Any = None
    choices: Any = None
    options: Any = None  # texts to choose from that the question does not hold yet: the answer is a letter
    numeric: Any = None
    required: Any = None
    search: Any = None
    rule: Any = None
    tolerance: Any = None
    source: Any = None  # the set's own name for where a row is from, kept as truth.source
    truth: Any = None  # all that is known of the answer, as JSON that vtcli wrote: in place of the columns for it
    trajectory: bool = False  # whether the set has trajectories, for demonstrations; messages or response say it too
    messages: Any = None  # a whole trajectory: a list of messages
    response: Any = None  # or the assistant's text, after the question
    system: Any = None
    tools: Any = None  # function schemas

    answer_is: Literal["text", "letter", "index"] | None = None  # of options; an index counts from 0
    constant_rule: str | None = None  # of rows that name none
    unwrap: bool = False  # the answer may stand inside <answer>…</answer> or \boxed{…}
    named: str = ""  # a regular expression; its group is the path by which the question names its image to code
    strip: tuple[str, ...] = ()  # regular expressions of what the question does not need: instructions, paths
    markers: Literal["exact", "any"] = "exact"  # whether every image has its <image>, where a text has any
    box_order: Literal["xyxy", "xywh", "yxyx"] = "xyxy"
    box_space: Space = "pixels"
    box_size: Any = None  # [width, height] of the resized image, for box_space: resized
    box_moves: tuple[str, ...] = ()  # transforms of the image after its boxes were measured, such as rot90
    box_label: str | None = None  # of boxes without a label
    boxes_of: Literal["first"] | None = None  # of rows with several images; None: each box has its "image"
    # Whether boxes are of the stored pixels or of the picture that its EXIF orientation turns upright; None: the row's
    # width and height tell.
    box_exif: Literal["stored", "upright"] | None = None
    inline: str | None = None  # the tag in which observations stand inside of the assistant's text
    decoded: bool = False  # the assistant's text holds later turns behind lines "user" and "assistant", as verl decodes
    # Whether a crop must be the picture that follows it; cut: pictures are not stored, and are cut from boxes of calls.
    crops: Literal["equal", "any", "cut"] = "equal"
    # The unit of coordinates in calls; None: the picture that answers a crop tells it. resized: box_size.
    call_space: Literal["view"] | Space | None = None
    prompt: Literal["row", "card"] = "row"  # whose system text and question a demonstration begins with

    def __post_init__(self) -> None:
        if self.messages is not None or self.response is not None:
            object.__setattr__(self, "trajectory", True)


CONVENTIONS = (
    "answer_is", "constant_rule", "unwrap", "named", "strip", "markers", "box_order", "box_space", "box_label",
    "boxes_of", "box_exif", "inline", "decoded", "crops", "call_space", "prompt",
)  # fmt: skip
"""Fields that ``reading`` of a configuration may set over those of a set's function."""

RowFunction = Callable[[Record], SetRow]


class UnusableRow(ValueError):
    """A record that a set's function cannot use. ``reason`` is one of few texts, by which such rows are counted;
    ``text`` goes on after the row's place."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason, self.text = reason, text


NUMERIC = ("numerical", "regression", "number", "vsi_numerical")
"""Types of problems by which SpaceR and VSI-Bench name a number, and PyVision-RL's data_source."""


def is_number(kind: Any, words: tuple[str, ...] = NUMERIC) -> Any:
    """True for a type of problem that means a number; any other value than text as it is."""
    return kind.strip().lower() in ("true", *words) if isinstance(kind, str) else kind


def changed(row: SetRow, values: Mapping[str, Any]) -> SetRow:
    """A row with other values; ``dataclasses.replace`` takes ten times as long."""
    return SetRow(**{name: values.get(name, getattr(row, name)) for name in SetRow.__slots__}) if values else row
