"""ToolsRL, "Visual Reasoning through Tool-supervised RL" (arXiv 2604.19945), Eq. 2-14.

Stage 1 rewards tools by their ground truth: (R_global + R_answer-cond) / 2 + R_format.
Stage 2 rewards the answer alone: R_answer + R_format.

The paper takes R_format from DeepEyes without giving a weight; DeepEyes' code has 0.2 times -1 or 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtcli import geometry
from vtcli.errors import ConfigError
from vtcli.rewards import broken, format_part, need, scaled, verdict
from vtcli.schema import Signals, Verdict


@dataclass(frozen=True, slots=True)
class Zoom:
    """Weights of ModF1. With a ``threshold`` (section 4.1) R is 1 where the best ModF1 reaches it, else 0."""

    w_fp: float = 0.1
    w_fn: float = 1.0
    threshold: float | None = None


def stage1(
    signals_G: Sequence[Signals],
    *,
    w_fp: float = 0.1,
    w_fn: float = 1.0,
    zoom_threshold: float | None = None,
    format_weight: float = 0.2,
) -> list[Verdict | None]:
    """Eq. 12, one verdict per member; None for a broken rollout. ``parts`` hold the terms before halving.

    Global 0.8 on image 2, the answer names image 1 with 0.4, format kept: (0.8 + 0.4) / 2 + 0 = 0.6.
    """
    zoom = Zoom(w_fp, w_fn, zoom_threshold)
    return [None if broken(signals) else _stage1(signals, zoom, format_weight) for signals in signals_G]


def stage2(signals_G: Sequence[Signals], *, format_weight: float = 0.2) -> list[Verdict | None]:
    """Eq. 14 with R_answer = ``answer_score`` (s_norm for charts, Eq. 13); None for a broken rollout."""
    return [None if broken(signals) else _stage2(signals, format_weight) for signals in signals_G]


def _stage1(signals: Signals, zoom: Zoom, format_weight: float) -> Verdict:
    states = state_rewards(signals, zoom)
    parts = {
        "tool_global": max(states.values(), default=0.0),
        "tool_answer": answer_conditioned(signals, states),
        "format": format_part(signals, format_weight),
    }
    return Verdict(total=(parts["tool_global"] + parts["tool_answer"]) / 2 + parts["format"], parts=parts)


def _stage2(signals: Signals, format_weight: float) -> Verdict:
    answer = scaled(1.0, need(signals, "answer_score"))
    return verdict({"answer": answer, "format": format_part(signals, format_weight)})


def tool_reward(
    signals: Signals, *, w_fp: float = 0.1, w_fn: float = 1.0, zoom_threshold: float | None = None
) -> float | None:
    """R_global, Eq. 10, of one trajectory in either form; None where the sample has no tool supervision."""
    if all(signals.values.get(name) is None for name in ("orientations", "zooms", "drawn")):
        return None
    return max(state_rewards(signals, Zoom(w_fp, w_fn, zoom_threshold)).values(), default=0.0)


def state_rewards(signals: Signals, zoom: Zoom) -> dict[int, float]:
    """R_task by image index, for the single supervision of the sample. An unlisted image has 0."""
    values = signals.values
    if values.get("orientations") is not None:
        return {k: float(name == "none") for k, name in enumerate(values["orientations"])}  # Eq. 4
    if values.get("zooms") is not None:
        return {entry["image"]: _zoom(entry["areas"], zoom) for entry in values["zooms"]}
    if values.get("drawn") is not None:
        truth, (width, height) = need(signals, "draw_truth"), need(signals, "draw_size")
        return {
            entry["image"]: geometry.draw_f1(entry["primitives"], truth, width, height) for entry in values["drawn"]
        }
    raise ConfigError(
        "the reward toolsrl needs one of the signals 'orientations', 'zooms', 'drawn', and none was measured; add "
        "vtcli.signals.orientation, boxes and primitives to the signals, or drop samples without tool supervision"
    )


def _zoom(found: Sequence[Mapping[str, Any]], zoom: Zoom) -> float:
    """Eq. 3: the best ModF1 over the true boxes. With a threshold: 1 where it is reached, else 0."""
    best = max((geometry.mod_f1(geometry.Areas(**areas), zoom.w_fp, zoom.w_fn) for areas in found), default=0.0)
    return best if zoom.threshold is None else float(best >= zoom.threshold)


def answer_conditioned(signals: Signals, states: Mapping[int, float]) -> float:
    """Eq. 11: R_task at the image that the answer names; 0 when it is missing, unreadable or out of range.

    A zoom answer names one image per visual element. The paper does not say how several add up. Here it is the mean,
    divided by at least the number of true boxes, so leaving one out gains nothing.
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
