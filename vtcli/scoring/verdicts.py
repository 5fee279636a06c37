"""The reward of each trajectory, and its verdicts for every stored group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from vtcli.config.binding import bind
from vtcli.errors import ConfigError, InputError
from vtcli.protocols import Reward, Signal
from vtcli.rewards import ReadLog, verdicts
from vtcli.schema import Signals, Verdict
from vtcli.scoring.missing import IMAGES_KEPT
from vtcli.scoring.stored import Facts, Score
from vtcli.signals import names_of


@dataclass(frozen=True, slots=True)
class FormReward:
    """The reward of a recipe's phase ``name``, for questions of one form. ``node`` is its part of the configuration."""

    name: str
    form: str
    reward: Reward
    node: Mapping[str, Any]


def rewards_of(rl: Mapping[str, Any], phase: str | None = None) -> dict[str, FormReward]:
    """Returns the reward that a recipe ends with, by form: of the last phase with questions of that form.

    ToolsRL: form "tool" by its stage 1, form "answer" by its stage 2. A form without a phase has no reward. ``phase``
    names the only phase to use.

    Raises:
        ConfigError: no phases (no recipe, or one without a reward), or none of that name.
    """
    phases = rl.get("phases")
    if not isinstance(phases, list) or not phases:
        raise ConfigError("there is no reward: rl.phases is not set. Choose a recipe that has one: +recipe=toolsrl")
    found: dict[str, FormReward] = {}
    for number, node in enumerate(cast("list[Any]", phases)):
        if not isinstance(node, Mapping) or not {"name", "form", "reward"} <= node.keys():
            raise ConfigError(f"rl.phases.{number}: a phase has a name, a form and a reward; got {node!r}")
        if phase in (None, node["name"]):
            reward = bind(node["reward"], f"rl.phases.{number}.reward")
            found[node["form"]] = FormReward(node["name"], node["form"], reward, node["reward"])
    if not found:
        names = ", ".join(str(node["name"]) for node in phases)
        raise ConfigError(f"scoring.phase={phase}: the recipe has no phase of that name; it has {names}")
    return found


@dataclass(frozen=True, slots=True)
class Scorer:
    """Applies a recipe's rewards to groups. ``strict``: a reward that cannot be computed ends the run; otherwise its
    group has the reason instead of verdicts."""

    rewards: Mapping[str, FormReward]
    signals: Mapping[str, Signal]  # of the configuration, for the message about a missing one
    strict: bool = True

    def score(
        self, found: Sequence[Facts], signals: Sequence[Signals], groups: Sequence[Sequence[int]]
    ) -> Iterator[Score]:
        """Yields the scores of all trajectories, group by group."""
        for number, members in enumerate(groups):
            first = found[members[0]]
            chosen = self.rewards.get(first.form)
            values = [signals[i] for i in members]
            if chosen is None:
                said: list[Verdict | None] = [None] * len(members)
                why = f"the recipe has no reward for questions of the form {first.form!r}"
            else:
                said, why = self._apply(chosen, values, first)
            for i, value, verdict in zip(members, values, said, strict=True):
                reason = None if verdict and verdict.total is not None else why or _reason(value)
                yield Score(found[i], number, chosen.name if chosen else None, value, verdict, reason)

    def wants(self, facts: Facts, signals: Signals) -> set[str]:
        """Returns signals that the reward needs and does not find, or without which it has no total: a judge may supply
        them."""
        chosen = self.rewards.get(facts.form)
        if chosen is None:
            return set()
        try:
            (verdict,) = chosen.reward([signals])
        except ConfigError as error:
            return _quoted(str(error))
        except Exception:  # reported where the group is scored
            return set()
        return set(signals.values.get("unjudged") or ()) if verdict and verdict.total is None else set()

    def reads(self, facts: Facts, signals: Signals) -> set[str]:
        """Returns signals that the reward reads for this trajectory, up to its first error."""
        chosen = self.rewards.get(facts.form)
        log: set[str] = set()
        if chosen is not None:
            with suppress(Exception):  # reported where the group is scored
                chosen.reward([Signals(ReadLog(signals.values, log))])
        return log

    def _apply(
        self, chosen: FormReward, values: Sequence[Signals], first: Facts
    ) -> tuple[list[Verdict | None], str | None]:
        """Returns the verdicts of a group. If one fails, all members have none, and the reason."""
        try:
            said = verdicts(chosen.reward, values)
            for verdict in said:
                if verdict and verdict.total is not None and not math.isfinite(verdict.total):
                    raise ValueError(f"its total is {verdict.total}")
            return said, None
        except ConfigError as error:
            problem: ConfigError | InputError = ConfigError(f"{error}{self._advice(str(error), values)}")
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
            problem = InputError(
                f"the reward cannot use the stored signals ({type(error).__name__}: {error}): they were measured by "
                "another version, or by something else. scoring.again=[NAME] measures a signal again"
            )
        if self.strict:
            where = f"trajectory {first.id!r} (task {first.task}, form {first.form})"
            raise type(problem)(f"{where} cannot be scored by the phase {chosen.name!r}: {problem}")
        return [None] * len(values), str(problem)

    def _advice(self, problem: str, values: Sequence[Signals]) -> str:
        """Returns advice on measuring the signals that a reward's message names in quotes."""
        lines: list[str] = []
        for name in sorted(_quoted(problem)):
            by = [signal for signal, function in self.signals.items() if name in names_of(function)]
            if not by:
                continue
            if all(name in value.values for value in values):
                lines.append(f"{name} was measured by {by[0]} and is empty: this kind of question has none")
            else:
                lines.append(
                    f"{name} is measured by {by[0]}, from the trajectory: give trajectories, not only their "
                    "signals, with scoring.measure=missing"
                )
        return f" ({'; '.join(lines)})" if lines else ""


def _quoted(problem: str) -> set[str]:
    return {part for part in problem.split("'")[1::2] if part.isidentifier()}


def _reason(signals: Signals) -> str:
    """Returns why a reward gave no verdict, or one without total."""
    if signals.values.get("stop") == "broken":
        return "broken"
    unjudged = signals.values.get("unjudged") or ()
    unseen = "" if signals.values.get(IMAGES_KEPT, True) else " (its images were not kept)"
    return f"unjudged: {', '.join(sorted(map(str, unjudged)))}{unseen}" if unjudged else "no verdict"


def nodes(rewards: Mapping[str, FormReward]) -> dict[str, Any]:
    """Returns the rewards by form with their values, for a manifest."""
    return {form: {"phase": found.name, "reward": dict(found.node)} for form, found in sorted(rewards.items())}
