"""CodeVision's reward ("Thinking with Programming Vision", 3.3.2, formulas 2 and 3): outcome + strategy - constraints.

R = [acc + 0.1 fmt] + [must-use + exact + 0.2 suggested + emergent] - 0.5 [turn limit + spurious + poor reasoning]

Tools are operations that the sandbox saw the code do, not words in its text. A turn, a flip or a crop pays only if the
host repeated it (``verified`` true). Other operations cannot be repeated and their claims count, because a policy that
could forge one could as well do it. Superfluous operations and calls cost also without a proof. Poor reasoning costs
only for a proven crop with a known box; such a crop earns no more than none.

Where the paper is silent (sizes of the bonuses, the negligible IoU) the released code decides (``agent_loop.py``);
where they disagree, ``Rules`` has the paper's way as the default and the code's by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vtcli.errors import ConfigError
from vtcli.rewards import broken, need, verdict
from vtcli.schema import Signals, Verdict

ORIENTATION = frozenset({"rotate_90", "rotate_180", "rotate_270", "flip_horizontal", "flip_vertical"})
CORE = ORIENTATION | {"crop"}
"""Operations that can be required (3.3.1)."""

STEPS = CORE | {"rotate"}
"""Operations that are a redundant step unless required (3.3.2 (a)), among them a turn by another angle."""

NO_TOOL = frozenset({"resize", "other"})
"""Ways to show a result, and unnamed operations. They count neither as redundant nor as optional tools."""


@dataclass(frozen=True, slots=True)
class CodevisionWeights:
    """Format, strategy (must-use, suggested) and penalty are the training settings'; exact and emergent the code's."""

    format: float = 0.1
    strategy: float = 1.0  # 0: the ablation "w/o strategy reward"
    must_use: float = 1.0
    exact: float = 0.1
    suggested: float = 0.2  # the code's script has 0
    emergent: float = 0.2
    penalty: float = 0.5  # of each of the three; 0: the ablation "w/o penalty"
    turn_limit: float = 1.0  # share of ``penalty`` that each of the three costs; 0 leaves one out
    spurious: float = 1.0
    poor_reasoning: float = 1.0


@dataclass(frozen=True, slots=True)
class Rules:
    """Readings of the terms: the paper's first, the released code's second."""

    exact: Literal["sequence", "set"] = "sequence"  # the required tools in order, no other of STEPS | the same of CORE
    # What counts as an optional tool. not_required is the paper's wording. By correct_step, another turn or flip than
    # the required one is a wrong step and no tool, because trial and error would otherwise earn more than the exact
    # sequence (3.3.2 (a)): 2.3 for two turns against 2.2 for the right one alone.
    optional: Literal["correct_step", "not_required", "outside_core"] = "correct_step"
    compared: Literal["optional", "any"] = "optional"  # tools that divide a group into T+ and T-
    turn_limit: Literal["n+1", "max(2,n)"] = "n+1"
    spurious: Literal["nothing_required", "no_orientation_required"] = "nothing_required"
    # If a crop is required: a third penalty | acc times must-use, and no suggested bonus.
    poor: Literal["penalty", "scale"] = "penalty"
    negligible: float = 0.1  # IoU (for "scale": must-use) below which evidence does not count


WEIGHTS, RULES = CodevisionWeights(), Rules()


@dataclass(frozen=True, slots=True)
class Play:
    """Facts of one trajectory, in the terms of the formulas."""

    right: bool | None  # None: the judge gave no verdict
    required: tuple[str, ...]  # in the prescribed order
    steps: tuple[str, ...]  # operations of STEPS and required ones, in the order of execution, proven or not
    used: frozenset[str]  # proven, or beyond CORE
    tried: frozenset[str]  # proven or not
    iou: float | None  # the best of all proven crops; None without a known box
    turns: int  # with calls
    clean: bool  # no call failed

    @property
    def must_use(self) -> float:
        """The must-use term: 1/n for each required tool that was used; a crop counts by its best IoU, the sum of the
        rewards of its improvements. 0 if no tool is required."""
        if not self.required:
            return 0.0
        named = sum(tool in self.used for tool in self.required if tool != "crop")
        shown = (self.iou or 0.0) if "crop" in self.required else 0.0
        return min(1.0, (named + shown) / len(self.required))


def strategic(
    signals_G: Sequence[Signals], *, weights: CodevisionWeights = WEIGHTS, rules: Rules = RULES
) -> list[Verdict | None]:
    """Returns one verdict per member; None for a broken rollout. A term that depends on an unjudged answer is None.

    Required: rotate_270, then a crop. Done: both in this order, the crop with an IoU of 0.6, right, format kept, in two
    calls. The total is 1 + 0.1 + (1 + 0.6) / 2 + 0.1 = 2.0.
    """
    plays = [None if broken(signals) else play(signals) for signals in signals_G]
    gain = necessity([p for p in plays if p is not None], rules)
    return [
        None if p is None else verdict(_terms(p, float(need(signals, "format_codevision")), gain, weights, rules))
        for signals, p in zip(signals_G, plays, strict=True)
    ]


def play(signals: Signals) -> Play:
    """Returns the trajectory's operations and calls. Raises ``ConfigError`` for a signal that was not measured, and for
    a truth that does not state the operations that the answer needs."""
    if "required" in signals.values and signals.values["required"] is None:
        raise ConfigError(
            "the reward codevision.strategic needs the signal 'required' (the operations that an answer needs), which "
            "the sample's truth lacks; give truth.required in the data, [] if none is needed, or truth.boxes"
        )
    right, calls = need(signals, "answer_correct"), need(signals, "turn_calls")
    # False: the host repeated the operation and got other pixels, so the claim is forged. None: it cannot be tested.
    operations = [entry for entry in need(signals, "operations") if entry["verified"] is not False]
    proven = [entry for entry in operations if entry["verified"]]
    names, required = [entry["name"] for entry in operations], tuple(need(signals, "required"))
    used = {entry["name"] for entry in proven} | (set(names) - CORE)
    return Play(
        right=None if right is None else right > 0.5,
        required=required,
        steps=tuple(name for name in names if name in STEPS.union(required)),
        used=frozenset(used) - NO_TOOL.difference(required),
        tried=frozenset(names),
        iou=max((e["iou"] for e in proven if e["name"] == "crop" and e["iou"] is not None), default=None),
        turns=sum(bool(turn) for turn in calls),
        clean=all(status == "ok" for turn in calls for status in turn),
    )


def necessity(plays: Sequence[Play], rules: Rules = RULES) -> float:
    """Formula 3, "inferred tool necessity": max(0, acc(T+) - acc(T-)).

    T+ and T- are the judged members with and without an optional tool. The value is 0 if either is empty, or if T- has
    more than one success.

    T+ right, right, wrong; T- right, wrong, wrong, wrong: 2/3 - 1/4 = 0.4167.
    """
    judged = [p for p in plays if p.right is not None]
    plus = [p for p in judged if _compared(p, rules)]
    minus = [p for p in judged if not _compared(p, rules)]
    # More than one success without a tool: the question does not need one, so none is suggested.
    if not plus or not minus or sum(bool(p.right) for p in minus) > 1:
        return 0.0
    plus_accuracy, minus_accuracy = (sum(bool(p.right) for p in part) / len(part) for part in (plus, minus))
    return max(0.0, plus_accuracy - minus_accuracy)


def _terms(p: Play, kept: float, gain: float, weights: CodevisionWeights, rules: Rules) -> dict[str, float | None]:
    scaled = rules.poor == "scale" and "crop" in p.required and p.must_use < rules.negligible
    poor = rules.poor == "penalty" and "crop" in p.required and p.iou is not None and p.iou < rules.negligible
    suggested = gain if _compared(p, rules) and not scaled else 0.0
    return {
        "answer": _if_right(p, p.must_use if scaled else 1.0),
        "format": weights.format * kept,
        "must_use": weights.strategy * weights.must_use * p.must_use,
        "exact": weights.strategy * weights.exact * float(_exact(p, rules)),
        "suggested": _if_right(p, weights.strategy * weights.suggested * suggested),
        "emergent": _if_right(p, weights.strategy * weights.emergent * float(bool(_optional(p, rules)))),
        # 0.0 - x, because -x is -0.0 without a penalty, and logs would show a cost.
        "turn_limit": 0.0 - weights.penalty * weights.turn_limit * _turns_over(p, rules),
        "spurious": 0.0 - weights.penalty * weights.spurious * _spurious(p, rules),
        "poor_reasoning": _if_right(p, -weights.penalty * weights.poor_reasoning * float(poor)),
    }


def _if_right(p: Play, value: float) -> float | None:
    """Returns ``value`` for a right answer, 0 for a wrong one, None for an unjudged one. A value of 0 needs no
    judge."""
    if value == 0.0 or p.right is False:
        return 0.0
    return None if p.right is None else value


def _optional(p: Play, rules: Rules) -> frozenset[str]:
    if rules.optional == "outside_core":
        return p.used - CORE
    turned = rules.optional == "correct_step" and ORIENTATION.intersection(p.required)
    return p.used.difference(p.required, ORIENTATION | {"rotate"} if turned else ())


def _compared(p: Play, rules: Rules) -> bool:
    return bool(p.used if rules.compared == "any" else _optional(p, rules))


def _exact(p: Play, rules: Rules) -> bool:
    """Returns True for the paper's "complete sequence ... correctly and in the prescribed order, without any redundant
    or incorrect steps". A crop that misses the target or a call that fails is not correct. Only turns, flips and crops
    are redundant, a turn by another angle included; a contrast raised on the way is an optional tool. The released code
    compares sets, and knows no turn by another angle."""
    if not p.required or not p.used.issuperset(p.required):
        return False
    if rules.exact == "set":
        return frozenset(p.required) == CORE.union(p.required).intersection(p.steps)
    fits = "crop" not in p.required or (p.iou or 0.0) >= rules.negligible
    return p.steps == p.required and p.clean and fits


def _turns_over(p: Play, rules: Rules) -> int:
    n = len(p.required)
    return max(0, p.turns - (n + 1 if rules.turn_limit == "n+1" else max(2, n)))


def _spurious(p: Play, rules: Rules) -> int:
    """Counts distinct orientation operations on a picture that is upright already. For the paper ("any attempt to use
    an orientation-adjusting tool") a turn by another angle is one; the released code knows none."""
    if rules.spurious == "nothing_required":
        return 0 if p.required else len((ORIENTATION | {"rotate"}) & p.tried)
    return 0 if ORIENTATION & set(p.required) else len(ORIENTATION & p.tried)
