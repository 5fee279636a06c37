"""Decides which teacher's trajectories become demonstrations: right and verified ones. Pure, on stored facts.

The papers keep right answers (CodeVision 3.2, PyVision-RL 3.4, Mini-o3) with enough tool turns (PyVision-RL: two). Here
the recorded operations must also have been done, and crops must show the true boxes where these are known.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from vtcli.config.bounds import at_least, shares
from vtcli.errors import ConfigError
from vtcli.families.messages import PLACEHOLDER
from vtcli.schema import Signals, Stop, Trajectory
from vtcli.store.parquet import CHAT_MARKER

OBSERVATION_TAGS = ("<tool_response>", "<interpreter>", "<sandbox_output>", "<observation>")
"""Tags of an environment's answers. A policy that writes one invents its observation."""

SLACK_PX = 2
"""Pixels by which a crop may extend beyond the one before it, because boxes are rounded outwards."""

_REFUSAL = re.compile(r"\b(sorry|can(?:no|')t|unable to|not able to|won't|as an ai)\b", re.IGNORECASE)

DemoType = Literal["no_tool", "single_tool", "multi_tool", "multi_crop", "error"]
"""CodeVision's five types (3.2), by the calls that succeeded. ``error``: a call failed and a later one succeeded."""

TYPES: tuple[DemoType, ...] = ("no_tool", "single_tool", "multi_tool", "multi_crop", "error")


@dataclass(frozen=True, slots=True)
class Keep:
    """``synth.distil.keep``. Null switches a bound off."""

    right: str = "answer_correct"  # the signal of a right answer: above one half
    min_calls: int = 1  # that succeeded; PyVision-RL: 2
    max_calls: int | None = None
    max_failed: int = 0  # calls that failed; CodeVision's and Pixel-Reasoner's error type: 1 or 2
    verified: Literal["all", "not_false", "any"] = (
        "all"  # of the operations that made an image, as the sandbox repeats them
    )
    min_cover: float | None = 0.5  # of a true box, shown by the best crop; where the truth has boxes
    min_iou: float | None = None  # of the best crop and a true box
    required: bool = False  # the operations that the row requires were done; a row that requires none may have no call
    nested: bool = False  # each of several crops lies inside the one before (CodeVision 3.2: shrinking windows)
    least: dict[str, float] = field(default_factory=dict[str, float])  # lower bounds of further signals, as a judge's

    def __post_init__(self) -> None:
        at_least(0, self, "min_calls", "max_calls", "max_failed")
        shares(self, "min_cover", "min_iou")


def why_dropped(trajectory: Trajectory, signals: Signals, keep: Keep) -> str | None:
    """Returns the first rule that a trajectory breaks, in fixed words, or None to keep it."""
    # Fixed words, because the report counts demonstrations by reason. The cheapest and commonest come first.
    return (
        _unfinished(trajectory)
        or _unwritable(trajectory)
        or _wrong(signals, keep)
        or _calls(trajectory, keep)
        or unverified(signals, keep.verified)
        or (_undone(signals) if keep.required else None)
        or _elsewhere(signals, keep)
        or (_unnested(signals) if keep.nested else None)
        or _below(signals, keep)
    )


def demo_type(trajectory: Trajectory, signals: Signals) -> DemoType:
    """Returns a trajectory's type, by the calls that succeeded."""
    ok = [result.status in ("ok", "no_output") for result in trajectory.results]
    if any(not before and any(ok[i + 1 :]) for i, before in enumerate(ok)):
        return "error"
    if sum(ok) < 2:
        return "single_tool" if any(ok) else "no_tool"
    crops = sum(operation["name"] == "crop" for operation in signals.values.get("operations") or ())
    return "multi_crop" if crops > 1 and crops == sum(ok) else "multi_tool"


def quality(trajectory: Trajectory, signals: Signals) -> tuple[float, ...]:
    """Returns a sort key, best last, for trajectories of one row: fewer failed calls, closer crops, fewer turns."""
    return (
        -_failed(trajectory),
        max((_iou(areas) for areas in _areas(signals)), default=0.0),
        -len(trajectory.policy_turns),
    )


def in_shares(types: Sequence[DemoType], wanted: Mapping[str, float]) -> list[bool]:
    """Returns for each row whether it stays, so that types have the shares ``wanted``. The first rows of a type stay,
    as many as the scarcest type allows. Rows of other types go; a wanted type without rows is ignored.

    >>> in_shares(["no_tool", "single_tool", "single_tool", "single_tool"], {"no_tool": 0.5, "single_tool": 0.5})
    [True, True, False, False]
    """
    if not wanted:
        return [True] * len(types)
    have = Counter(types)
    found = {name: share for name, share in wanted.items() if share > 0 and have[name]}  # pyright: ignore[reportArgumentType]
    total = min((have[name] / share for name, share in found.items()), default=0.0)  # pyright: ignore[reportArgumentType]
    # 1e-9, because a product such as 0.29 * 100 is 28.999…: floor alone would lose a row.
    left = Counter({name: math.floor(total * share + 1e-9) for name, share in found.items()})
    kept: list[bool] = []
    for name in types:
        kept.append(left[name] > 0)
        left[name] -= 1
    return kept


def require_types(wanted: Mapping[str, float]) -> None:
    """Raises ``ConfigError`` for unknown types and for shares outside 0 to 1."""
    if unknown := sorted(set(wanted) - set(TYPES)):
        raise ConfigError(f"synth.distil.shares: no type of demonstration is called {unknown}; known: {list(TYPES)}")
    if any(not 0 <= share <= 1 for share in wanted.values()):
        raise ConfigError(f"synth.distil.shares: expected shares from 0 to 1, got {dict(wanted)}")


def _unfinished(trajectory: Trajectory) -> str | None:
    if trajectory.stop is not Stop.ANSWERED:
        return f"ended by {trajectory.stop}"
    if trajectory.answer is None:
        last = trajectory.policy_turns[-1].text if trajectory.policy_turns else ""
        return "refused" if _REFUSAL.search(last) else "no answer"
    return None


def _unwritable(trajectory: Trajectory) -> str | None:
    said = "\n".join(turn.text for turn in trajectory.policy_turns)
    if any(tag in said for tag in OBSERVATION_TAGS):
        return "wrote an observation itself"
    # The tokenizer would read it as a token that opens a turn or an image.
    if CHAT_MARKER.search(said) or PLACEHOLDER in said:
        return "wrote a chat marker"
    return None


def _wrong(signals: Signals, keep: Keep) -> str | None:
    right: Any = signals.values.get(keep.right)
    if right is None:
        return "no verdict on the answer"
    return None if right > 0.5 else "wrong answer"


def _failed(trajectory: Trajectory) -> int:
    return sum(result.status not in ("ok", "no_output") for result in trajectory.results)


def _calls(trajectory: Trajectory, keep: Keep) -> str | None:
    failed = _failed(trajectory)
    done = len(trajectory.results) - failed
    if failed > keep.max_failed:
        return f"more than {keep.max_failed} failed calls"
    if done < keep.min_calls:
        return f"fewer than {keep.min_calls} calls were carried out"
    if keep.max_calls is not None and done > keep.max_calls:
        return f"more than {keep.max_calls} calls"
    return None


def unverified(signals: Signals, verified: Literal["all", "not_false", "any"]) -> str | None:
    """Returns why operations fail when the sandbox repeats them, or None: one was not done, or (``all``) the sandbox
    cannot repeat the operation behind an image."""
    if verified == "any":
        return None
    made: Iterable[Mapping[str, Any]] = signals.values.get("operations") or ()
    if any(operation["verified"] is False for operation in made):
        return "claims an operation that was not done"
    shown = [operation["verified"] for operation in made if operation["image"] is not None]
    return "an operation that nothing verifies" if verified == "all" and None in shown else None


def _undone(signals: Signals) -> str | None:
    """Returns a reason if an operation that the row requires was not done, such as turning the picture upright."""
    made: Iterable[Mapping[str, Any]] = signals.values.get("operations") or ()
    done = {operation["name"] for operation in made if operation["verified"] is not False}
    return None if done.issuperset(signals.values.get("required") or ()) else "a required operation was not done"


def _areas(signals: Signals) -> list[Mapping[str, float]]:
    """Returns the areas tp, fp, fn of every crop against every true box."""
    return [areas for zoom in signals.values.get("zooms") or () for areas in zoom["areas"]]


def _iou(areas: Mapping[str, float]) -> float:
    return areas["tp"] / max(areas["tp"] + areas["fp"] + areas["fn"], 1e-9)


def _elsewhere(signals: Signals, keep: Keep) -> str | None:
    """Returns a reason if no crop of a visual search shows a true box well enough."""
    # Rows without true boxes cannot be checked; with min_calls=0 a demonstration may answer without a crop.
    if not signals.values.get("zoom_labels") or (not signals.values.get("zooms") and keep.min_calls == 0):
        return None
    found = _areas(signals)
    cover = max((areas["tp"] / max(areas["tp"] + areas["fn"], 1e-9) for areas in found), default=0.0)
    if keep.min_cover is not None and cover < keep.min_cover:
        return "no crop shows a true box"
    if keep.min_iou is not None and max(map(_iou, found), default=0.0) < keep.min_iou:
        return "no crop is close to a true box"
    return None


def _unnested(signals: Signals) -> str | None:
    """Returns a reason if a crop leaves the one before it, or is no smaller."""
    made: Iterable[Mapping[str, Any]] = signals.values.get("operations") or ()
    boxes = [operation["box"] for operation in made if operation["name"] == "crop" and operation["image"] is not None]
    if len(boxes) < 2:
        return None
    if any(box is None for box in boxes):
        return "several crops, and the place of one is not known"
    for (a1, b1, a2, b2), (x1, y1, x2, y2) in pairwise(boxes):
        inside = min(x1 - a1, y1 - b1, a2 - x2, b2 - y2) >= -SLACK_PX
        if not inside or (x2 - x1) * (y2 - y1) >= (a2 - a1) * (b2 - b1):
            return "crops that are not nested"
    return None


def _below(signals: Signals, keep: Keep) -> str | None:
    for name, bound in keep.least.items():
        value: Any = signals.values.get(name)
        if not isinstance(value, int | float):
            return f"no value of {name}"
        if value < bound:
            return f"{name} is too low"
    return None
