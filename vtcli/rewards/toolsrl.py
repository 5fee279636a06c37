"""ToolsRL, "Visual Reasoning through Tool-supervised RL" (arXiv 2604.19945), Eq. 2-16.

Stage 1 rewards tools by their ground truth: (R_global + R_answer-cond) / 2 + R_format.
Stage 2 rewards the answer alone: R_answer + R_format.

``combined`` is the ablation without a curriculum: R_answer + R_global + R_format in one stage.

The paper takes R_format from DeepEyes without giving a weight; DeepEyes' code has 0.2 times -1 or 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vtcli import geometry
from vtcli.errors import ConfigError
from vtcli.rewards import broken, format_part, need, scaled, verdict
from vtcli.schema import Signals, Verdict


@dataclass(frozen=True, slots=True)
class Switches:
    """Choices of the stage-1 reward: the paper's framework first, its ablations second."""

    terms: Literal["both", "global", "answer"] = "both"  # Eq. 12 | only one of its halves (table 2, E.3)
    draw_within: float | None = None  # Eq. 5, by distance | Eq. 15: full credit within this many pixels, else none

    def __post_init__(self) -> None:
        if self.draw_within is not None and self.draw_within <= 0:
            raise ValueError(f"draw_within={self.draw_within:g} must be above 0 pixels, or null")


SWITCHES = Switches()

TIE = 1e-9
"""Difference below which ModF1 equals its threshold."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Terms of the per-state rewards: weights of ModF1, its threshold (4.1), and the pixels of the discrete drawing."""

    w_fp: float = 0.1
    w_fn: float = 1.0
    threshold: float | None = 0.5
    draw_within: float | None = None


def stage1(
    signals_G: Sequence[Signals],
    *,
    w_fp: float = 0.1,
    w_fn: float = 1.0,
    zoom_threshold: float | None = 0.5,
    format_weight: float = 0.2,
    switches: Switches = SWITCHES,
) -> list[Verdict | None]:
    """Eq. 12, one verdict per member; None for a broken rollout. ``parts`` has both terms before halving, also if
    ``switches.terms`` pays only one of them, which it then pays in full.

    Global 0.8 on image 2, the answer names image 1 with 0.4, format kept: (0.8 + 0.4) / 2 + 0 = 0.6. Global only: 0.8.
    """
    scale = Scale(w_fp, w_fn, zoom_threshold, switches.draw_within)
    return [None if broken(s) else _stage1(s, scale, format_weight, switches.terms) for s in signals_G]


def stage2(signals_G: Sequence[Signals], *, format_weight: float = 0.2) -> list[Verdict | None]:
    """Eq. 14 with R_answer = ``answer_score`` (s_norm for charts, Eq. 13); None for a broken rollout."""
    return [None if broken(signals) else _stage2(signals, format_weight) for signals in signals_G]


def combined(
    signals_G: Sequence[Signals],
    *,
    w_fp: float = 0.1,
    w_fn: float = 1.0,
    zoom_threshold: float | None = 0.5,
    format_weight: float = 0.2,
) -> list[Verdict | None]:
    """R_answer + R_global + R_format of plain questions, in one stage; None for a broken rollout.

    The paper compares its curriculum with "combined reward training" (3.3.3, table 2) and prints no formula. A plain
    answer names no image, so there is no answer-conditioned term. Without tool supervision the tool's term is 0.

    Right, the best crop reaches the threshold, format kept: 1 + 1 + 0 = 2.
    """
    scale = Scale(w_fp, w_fn, zoom_threshold)
    return [None if broken(signals) else _combined(signals, scale, format_weight) for signals in signals_G]


def _stage1(signals: Signals, scale: Scale, format_weight: float, terms: str) -> Verdict:
    states = state_rewards(signals, scale)
    parts = {
        "tool_global": max(states.values(), default=0.0),
        "tool_answer": answer_conditioned(signals, states),
        "format": format_part(signals, format_weight),
    }
    tool = (parts["tool_global"] + parts["tool_answer"]) / 2 if terms == "both" else parts[f"tool_{terms}"]
    return Verdict(total=tool + parts["format"], parts=parts)


def _combined(signals: Signals, scale: Scale, format_weight: float) -> Verdict:
    tool = max(state_rewards(signals, scale).values(), default=0.0) if supervised(signals) else 0.0
    answer = scaled(1.0, need(signals, "answer_score"))
    return verdict({"answer": answer, "tool": tool, "format": format_part(signals, format_weight)})


def _stage2(signals: Signals, format_weight: float) -> Verdict:
    answer = scaled(1.0, need(signals, "answer_score"))
    return verdict({"answer": answer, "format": format_part(signals, format_weight)})


def tool_reward(
    signals: Signals, *, w_fp: float = 0.1, w_fn: float = 1.0, zoom_threshold: float | None = 0.5
) -> float | None:
    """R_global, Eq. 10, of one trajectory in either form; None if the sample has no tool supervision."""
    if not supervised(signals):
        return None
    return max(state_rewards(signals, Scale(w_fp, w_fn, zoom_threshold)).values(), default=0.0)


def supervised(signals: Signals) -> bool:
    """Returns True if the sample's truth has the right use of the tools."""
    return any(signals.values.get(name) is not None for name in ("orientations", "zooms", "drawn"))


def state_rewards(signals: Signals, scale: Scale) -> dict[int, float]:
    """Returns R_task by image index, for the single supervision of the sample. An unlisted image has 0."""
    values = signals.values
    if values.get("orientations") is not None:
        return {k: float(name == "none") for k, name in enumerate(values["orientations"])}  # Eq. 4
    if values.get("zooms") is not None:
        return {entry["image"]: _zoom(entry["areas"], scale) for entry in values["zooms"]}
    if values.get("drawn") is not None:
        truth, (width, height) = need(signals, "draw_truth"), need(signals, "draw_size")
        return {
            entry["image"]: geometry.draw_f1(entry["primitives"], truth, width, height, scale.draw_within)
            for entry in values["drawn"]
        }
    raise ConfigError(
        "the reward toolsrl needs one of the signals 'orientations', 'zooms', 'drawn', but none was measured; add "
        "vtcli.signals.orientation, boxes and primitives to the signals, or drop samples without tool supervision"
    )


def _zoom(found: Sequence[Mapping[str, Any]], scale: Scale) -> float:
    """Returns the best ModF1 over the true boxes (Eq. 3): 1 if it reaches the threshold (figure 7; 4.1 has IoU), else
    0. Without a threshold, the value itself."""
    best = max((geometry.mod_f1(geometry.Areas(**areas), scale.w_fp, scale.w_fn) for areas in found), default=0.0)
    # TIE, because a crop of exactly 21 times the true area has ModF1 = 0.5, and areas of fractional boxes are rounded.
    return best if scale.threshold is None else float(best >= scale.threshold - TIE)


def answer_conditioned(signals: Signals, states: Mapping[int, float]) -> float:
    """Eq. 11: R_task at the image that the answer names; 0 if it is missing, unreadable or out of range.

    A zoom answer names one image per visual element, and the paper does not state how several add up. Here it is the
    mean, divided by at least the number of true boxes, so that leaving one out gains nothing.
    """
    index, names = signals.values.get("answer_index"), signals.values.get("answer_map")
    if index is not None:
        named = [index]
    elif names is not None and signals.values.get("zooms") is not None:
        named = list(names.values())
    else:
        return 0.0
    count = max(len(named), len(signals.values.get("zoom_labels") or ()))
    return sum(states.get(k, 0.0) for k in named) / count
