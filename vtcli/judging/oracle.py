"""The judge of generated data. It answers from ground truth, so that every recipe trains without a judge model.

Evidence follows CodeV's rubric (arXiv 2511.19661, template 13.2): 1 clearly contains an object of the question, .5
partly, .25 not. Here "contains" is coverage of a true box, and "clearly" is resolution and share of the crop, because
by coverage alone the whole picture would be evidence. A crop of one of several targets is enough (section 4.3, ii).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vtcli import geometry
from vtcli.config.bounds import OutOfBounds, at_least, shares
from vtcli.errors import ConfigError
from vtcli.protocols import About, Case, Images, Ruling
from vtcli.schema import ImageRef, Sample

FULL, PARTLY, NONE = 1.0, 0.5, 0.25
"""The scores of template 13.2."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Thresholds for "a crop shows a target". Partly seen is half as sharp and half as wide as seen; half of a side is
    a quarter of an area."""

    covers: float = 0.9  # share of the target's area that the crop must hold; partly: covers_partly
    covers_partly: float = 0.5
    min_scale: float = 0.5  # view pixels per original pixel; partly: half of it
    min_share: float = 0.04  # of the crop's area that is target, a fifth of its side; partly: a quarter of it

    def __post_init__(self) -> None:
        shares(self, "covers", "covers_partly", "min_share")
        at_least(0, self, "min_scale")

    def score(self, box: Sequence[float], ref: ImageRef, target: Sequence[float]) -> float:
        """Returns the evidence of image ``ref``: 1, .5 or .25. ``box`` is the part of the picture that it shows.

        Example: a target of 72 × 72. A crop of 168 × 168 shown as 112 × 112 gets 1: all of it, scale .67, share .18. A
        crop of 336 × 336 gets .5: scale .33, share .05. All of 672 × 672 gets .25: scale .17.
        """
        seen, whole = geometry.area(box), geometry.area(target)
        if seen <= 0 or whole <= 0:
            return NONE
        coverage = geometry.intersection(box, target) / whole
        # Mean scale of both sides, because a view may be resized differently in each.
        scale, share = math.sqrt(ref.view_width * ref.view_height / seen), whole / seen
        if coverage >= self.covers and scale >= self.min_scale and share >= self.min_share:
            return FULL
        if coverage >= self.covers_partly and scale >= self.min_scale / 2 and share >= self.min_share / 4:
            return PARTLY
        return NONE

    def best(self, images: Sequence[ImageRef], index: int, targets: Sequence[Sequence[float]]) -> float:
        """Returns an image's best score over the targets, or the lowest if the image's area is not certain."""
        box = geometry.shown_box(images, index)
        if box is None:
            return NONE
        return max((self.score(box, images[index], target) for target in targets), default=NONE)


class Oracle:
    """A ``Judge`` without a model. It judges evidence if the truth has boxes, and the consistency of plain answers. A
    rule decides whether an answer is correct (``signals.answer``)."""

    name = "oracle"
    trouble = ""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight

    def knows(self, about: About, sample: Sample) -> bool:
        if about == "evidence":
            return bool(sample.truth.get("boxes"))
        return about == "consistency"

    async def start(self, rubrics: Sequence[str], *, eager: bool = True) -> None:
        """Returns at once: the oracle works with any rubric and needs no trial."""

    async def close(self) -> None: ...

    async def __call__(self, case: Case) -> Ruling:
        if case.about == "evidence" and case.step is not None:
            return Ruling(self._evidence(case, case.trajectory.results[case.step].images))
        if case.about == "evidence":
            return Ruling(self._reply(case))
        if case.about == "consistency":
            return self._consistency(case)
        return Ruling(None, f"the oracle cannot be asked about {case.about}")

    def _evidence(self, case: Case, made: Sequence[int]) -> float:
        """Returns the best score of the images of one call that the case shows."""
        images = case.trajectory.images
        targets = [true["box"] for true in case.trajectory.sample.truth.get("boxes") or ()]
        # A call may number images that the world dropped at its limit.
        shown = [index for index in made if index < len(images) and images[index] in case.images]
        return max((self.sight.best(images, index, targets) for index in shown), default=NONE)

    def _reply(self, case: Case) -> float:
        """Returns the score of a whole reply on the scale of CodeV's released code.

        0 if no call made an image, else by the best image 1, .75 or .25.
        """
        made = [index for result in case.trajectory.results for index in result.images]
        return {FULL: 1.0, PARTLY: 0.75, NONE: 0.25}[self._evidence(case, made)] if made else 0.0

    def _consistency(self, case: Case) -> Ruling:
        """Returns 1 if the last look could show the answer, else 0, also for a right answer that nothing could show.

        The last look is the last image, or as many images as the question has targets. With ``tags`` in the truth
        (targets and others, each with its ``mark``) the answer must be a mark that is visible there. With boxes alone
        it must be right and a target visible. A page that is not upright shows the corner elsewhere. Other tasks show
        their subject from the start, so a right answer is consistent.
        """
        truth, images = case.trajectory.sample.truth, case.trajectory.images
        answer = case.texts.get("answer", "")
        boxes = [true["box"] for true in truth.get("boxes") or ()]
        if boxes and images:
            looks = range(max(0, len(images) - len(boxes)), len(images))
            if truth.get("tags"):
                return Ruling(float(self._seen_marks(answer, truth["tags"], images, looks)))
            seen = any(self.sight.best(images, index, boxes) == FULL for index in looks)
            return Ruling(float(bool(case.right) and seen))
        if truth.get("transform") is not None and images:
            return _turned(answer, truth, images, case.right)
        return Ruling(float(bool(case.right)))

    def _seen_marks(
        self, answer: str, tags: Sequence[Mapping[str, Any]], images: Sequence[ImageRef], looks: Sequence[int]
    ) -> bool:
        seen = {
            _plain(str(tag["mark"]))
            for tag in tags
            if any(self.sight.best(images, index, [tag["box"]]) == FULL for index in looks)
        }
        said = [_plain(part) for part in answer.split(",")]
        return all(part in seen for part in said)


def judges(judge: Callable[..., Any] | None) -> bool:
    """Returns True if the oracle is the run's judge of evidence. It looks at images that code made, so their claims
    must be tested."""
    judge = getattr(judge, "keywords", {}).get("evidence", judge)  # the inner judge of judge=separate
    return judge is None or getattr(judge, "func", judge) is open_judge


def open_judge(
    *,
    images: Images | None = None,
    home: Path | None = None,
    covers: float = 0.9,
    covers_partly: float = 0.5,
    min_scale: float = 0.5,
    min_share: float = 0.04,
) -> Oracle:
    """Opens the oracle with its thresholds (``Sight``) from conf/judge/oracle.yaml. It ignores ``images`` and ``home``,
    which every judge receives."""
    del images, home
    try:
        return Oracle(Sight(covers, covers_partly, min_scale, min_share))
    except OutOfBounds as problem:
        raise ConfigError(f"judge.{problem}") from None


def _plain(text: str) -> str:
    return text.strip().strip(".").casefold()


def _turned(answer: str, truth: Mapping[str, Any], images: Sequence[ImageRef], right: bool | None) -> Ruling:
    """Returns 1 if the answer names the corner that the last look shows; on an upright page that is the right
    answer."""
    turn = _orientation(str(truth["transform"]), images, len(images) - 1)
    if turn is None:
        return Ruling(None, "how the last image is turned cannot be told")
    if turn == "none" or "corner" not in truth or truth.get("kind") not in (None, "corner"):
        return Ruling(float(turn == "none" and bool(right)))
    return Ruling(float(_plain(answer) == geometry.turned_corner(turn, str(truth["corner"]))))


def _orientation(start: str, images: Sequence[ImageRef], index: int) -> str | None:
    """Returns the orientation of image ``index`` if image 0 has ``start``, or None if it is unknown."""
    parent = images[index].parent
    if parent is None:
        return start if index == 0 else None
    before, change = _orientation(start, images, parent), _change(images[index].transform or {})
    return None if before is None or change is None else geometry.compose(before, change)


def _change(transform: Mapping[str, Any]) -> str | None:
    if transform.get("op") != "code":
        return geometry.orientation_of(transform)
    # Code may claim any operation; only one that the sandbox repeated tells how its image is turned.
    if transform.get("verified") is not True:
        return None
    total = "none"
    for operation in cast("list[Mapping[str, Any]]", transform.get("operations") or []):
        name, given = operation["name"], operation["arguments"]
        if name == "flip":
            total = geometry.compose(total, "hflip" if given.get("axis") == "horizontal" else "vflip")
        elif name == "rotate":
            step = {0: "none", 90: "rot90", 180: "rot180", 270: "rot270"}.get(given.get("degrees"))
            # Another angle leaves no corner where it was.
            if step is None:
                return None
            total = geometry.compose(total, step)
        elif name in ("warp", "frames"):  # any geometry
            return None
    return total
