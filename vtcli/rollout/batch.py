"""The batch of a step of RL: rounds of rollouts until it is full, over all ranks, with their credit.

A batch can be collected beside the learner, one step ahead. It is then part of a checkpoint, so that a resumed run
learns from the same rollouts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from vtcli.algo import pack
from vtcli.algo.monitor import credit_spread, describe
from vtcli.algo.select import chosen, correct_with_negative_credit, minibatches
from vtcli.protocols import Ranks, Reward
from vtcli.rollout.loop import GroupRequest
from vtcli.rollout.stream import Stream, StreamResult
from vtcli.rollout.threads import Runs, compute
from vtcli.schema import (
    CallResult,
    Completion,
    Credit,
    EnvTurn,
    Finish,
    Group,
    Observation,
    PolicyTurn,
    Sample,
    Scored,
    Signals,
    Stop,
    TrainRow,
    Trajectory,
    Turn,
    Verdict,
)
from vtcli.signals.measuring import unjudged_share, unscored_share
from vtcli.store import disk, records
from vtcli.store.image_work import in_thread

Wire = tuple[Any, ...]
"""A group as plain tuples of numbers and short names: below 1 KB a trajectory when pickled, however long it is."""


@dataclass(frozen=True, slots=True)
class LightGroup:
    """A group without tokens, texts, images and truths, and the number of tokens that the policy wrote in each member.

    ``group`` keeps the sample's id, task, form and split. A member keeps id, stop, seed, verdict, the signals that are
    numbers, and the ends and versions of its policy turns. Of each call it keeps name, status and image indices.
    """

    group: Group
    tokens: tuple[int, ...]  # (G,)


def light(group: Group) -> LightGroup:
    """Returns the light form of a group."""
    return unpacked(packed(group))


def packed(group: Group) -> Wire:
    """Returns a group as it travels between ranks, without tokens, texts and images, which would be megabytes."""
    sample = group.sample
    return sample.id, sample.task, sample.form, sample.split, tuple(_member(member) for member in group.members)


def unpacked(wire: Wire) -> LightGroup:
    """Returns the parts of a group that ``packed`` keeps."""
    *words, members = wire
    sample = Sample(*words, question="", answer="", images=(), tools=())
    scored = tuple(_scored(sample, member) for member in members)
    return LightGroup(Group(sample, scored), tuple(member[0] for member in members))


def _member(member: Scored) -> Wire:
    trajectory, verdict = member.trajectory, member.verdict
    tokens = sum(len(turn.token_ids) for turn in trajectory.policy_turns)
    said = None if verdict is None else (verdict.total, _named(verdict.parts), verdict.per_turn)
    turns = tuple(_turn(turn) for turn in trajectory.turns)
    return tokens, trajectory.id, trajectory.stop.value, trajectory.seed, _named(numbers(member.signals)), said, turns


def numbers(signals: Signals) -> dict[str, float]:
    """Returns the signals that are numbers, and the lengths of the lists ``judged`` and ``unjudged``."""
    out: dict[str, float] = {}
    for name, value in signals.values.items():
        if isinstance(value, int | float):
            out[name] = value
        elif isinstance(value, list | tuple) and name in ("judged", "unjudged"):
            out[name] = len(value)  # pyright: ignore[reportUnknownArgumentType]
    return out


def _named(values: Mapping[str, float | None]) -> Wire:
    """Returns names and values. Equal names are interned, because pickle writes one object once in a message."""
    return tuple(map(sys.intern, values)), tuple(values.values())


def _turn(turn: Turn) -> Wire:
    if isinstance(turn, PolicyTurn):
        return sys.intern(turn.completion.finish), turn.version
    results = turn.observation.results
    return tuple(
        (r.name and sys.intern(r.name), sys.intern(r.status), r.images) for r in results
    ), turn.observation.ends


def _scored(sample: Sample, wire: Wire) -> Scored:
    _, name, stop, seed, signals, said, turns = wire
    verdict = None if said is None else Verdict(said[0], dict(zip(*said[1], strict=True)), said[2])
    trajectory = Trajectory(name, sample, (), (), tuple(map(_read, turns)), Stop(stop), seed)
    return Scored(trajectory, Signals(dict(zip(*signals, strict=True))), verdict)


def _read(wire: Wire) -> Turn:
    if isinstance(wire[0], str):
        return PolicyTurn(Completion((), (), cast("Finish", wire[0])), "", (), None, wire[1])
    results = tuple(CallResult(name, None, status, "", math.nan, images) for name, status, images in wire[0])
    return EnvTurn(Observation("", (), results, wire[1]), ())


T = TypeVar("T")


@dataclass(frozen=True)
class RoundRequest:
    """One round of a step: the groups of all its places, which ranks share out, and their reward.

    ``group`` loads a place's sample, in any thread. ``prefetch`` receives this rank's places once they are loaded, and
    may start to load those of the next step.
    """

    group: Callable[[int], GroupRequest]
    places: int
    reward: Reward
    prefetch: Callable[[Sequence[int]], None] | None = None


@dataclass(frozen=True)
class Fill:
    """Condition for the end of a step: ``wanted`` trajectories with credit, or ``max_rounds`` rounds."""

    wanted: int
    max_rounds: int = 1
    stop_when_full: bool = False  # then cancel the rest of a round; favours quick questions, so off by default


@dataclass(frozen=True)
class StepBatch:
    """The rollouts of one step: this rank's; the light groups of all ranks by place, in order, with ``credit`` where
    the step selects them; and the number of rollouts that all ranks cancelled."""

    step: int
    own: StreamResult
    light: Mapping[int, LightGroup]
    credit: Mapping[int, Sequence[Credit]]
    rounds: int
    cancelled: int

    @property
    def everyone(self) -> dict[int, Group]:
        """The groups of all ranks, without tokens, texts and images."""
        return {place: each.group for place, each in self.light.items()}

    @property
    def scored(self) -> list[Scored]:
        """This rank's trajectories."""
        return [member for group in self.own.groups.values() for member in group.members]

    def metrics(self) -> dict[str, float]:
        """Returns the batch's metrics. ``staleness`` is the number of steps by which the sampling weights are older
        than the learner."""
        groups, credit = list(self.everyone.values()), list(self.credit.values())
        tokens = [count for each in self.light.values() for count in each.tokens]
        out = (
            describe(groups, tokens)
            | credit_spread(credit)
            | {"selected": float(chosen(credit)), "rounds": float(self.rounds)}
        )
        # Counted, because cancelled rollouts cost time that no other figure shows.
        out["cancelled"] = float(self.cancelled)
        members = [member for group in groups for member in group.members]
        versions = [turn.version for member in members for turn in member.trajectory.policy_turns]
        shares = {
            "correct_negative": correct_with_negative_credit(groups, credit),
            "judge/unjudged": unjudged_share(member.signals for member in members),
            "answer_error": unscored_share(member.signals for member in members),
            "staleness": self.step - math.fsum(versions) / len(versions) if versions else None,
        }
        return out | {name: share for name, share in shares.items() if share is not None} | self._times()

    def _times(self) -> dict[str, float]:
        """``time/engine_busy``: share of the rollouts' time in which the engine computes; ``time/other_s``: the rest
        after engine, worlds and judge."""
        seconds = self.own.seconds
        if not seconds:
            return {}
        total = seconds["rollout"]
        parts = {kind: seconds[kind] for kind in ("generate", "env", "judge")}
        out = {"time/rollout_s": total, "time/engine_busy": parts["generate"] / total if total else 0.0}
        out |= {f"time/{kind}_s": value for kind, value in parts.items()}
        if total:
            tokens = sum(len(turn.token_ids) for each in self.scored for turn in each.trajectory.policy_turns)
            out["time/rollout_tokens_per_s"] = tokens / total
        return out | {"time/other_s": max(total - sum(parts.values()), 0.0)}

    def rows(self, count: int) -> list[list[TrainRow]]:
        """Returns this rank's rows in ``count`` mini-batches."""
        # Over all ranks' credit, so that each mini-batch has the same groups whatever the number of ranks.
        out: list[list[TrainRow]] = [[] for _ in range(count)]
        parts = dict(zip(self.credit, minibatches(list(self.credit.values()), count), strict=True))
        for place, group in self.own.groups.items():
            for member, value, part in zip(group.members, self.credit[place], parts[place], strict=True):
                # A member without credit was not selected; one without turns has nothing to learn from.
                if value is not None and part is not None and member.trajectory.policy_turns:
                    out[part].append(pack.to_row(member.trajectory, value))
        return out


class Collector:
    """Collects the batches of steps on one event loop.

    The rounds of a step come in order and are taken as far as the step needs them. They must depend only on the step,
    so that a resumed run requests the same ones. ``credit[i]`` is rollout i's advantage, or None if the learner does
    not take it. Collective: all ranks call the same methods in the same order.
    """

    def __init__(
        self,
        loop: Runs,
        stream: Stream,
        credit: Callable[[Sequence[Group]], list[list[Credit]]],
        fill: Fill,
        ranks: Ranks,
    ) -> None:
        self.loop, self.stream, self.credit = loop, stream, credit
        self.fill, self.ranks = fill, ranks

    def collect(self, step: int, rounds: Iterable[RoundRequest]) -> StepBatch:
        """Returns the batch of a step, from as many of ``rounds`` as the selection needs to fill it."""
        upcoming = iter(rounds)
        return self._filled(step, self.loop.run(self._round(next(upcoming), 0, self.fill.wanted)), upcoming)

    def beside(self, work: Callable[[], T], step: int, rounds: Iterable[RoundRequest]) -> tuple[T, StepBatch]:
        """Runs ``work`` in this thread and meanwhile collects the batch of ``step``. ``work`` must not change the
        policy's weights, because no importance weight describes a trajectory of two versions.

        Only the first round runs beside it: ranks decide together on another round, and that collective would meet the
        learner's own.
        """
        upcoming = iter(rounds)
        done, result = self.loop.run(self._both(work, self._round(next(upcoming), 0, self.fill.wanted)))
        return done, self._filled(step, result, upcoming)

    async def _both(self, work: Callable[[], T], rollouts: Coroutine[Any, Any, StreamResult]) -> tuple[T, StreamResult]:
        rolling = asyncio.ensure_future(rollouts)
        try:
            done = await compute(work)
            return done, await rolling
        finally:  # after a failure of the learner or a signal, no rollout may continue in the background
            rolling.cancel()
            await asyncio.gather(rolling, return_exceptions=True)

    def _filled(self, step: int, result: StreamResult, upcoming: Iterator[RoundRequest]) -> StepBatch:
        rounds = 1
        while True:
            batch = self._credited(step, result, rounds)
            # All ranks compute the same number from the same credit, so they decide alike without another message.
            lacking = self.fill.wanted - chosen(list(batch.credit.values()))
            if rounds == self.fill.max_rounds or lacking <= 0:
                return batch
            result += self.loop.run(self._round(next(upcoming), rounds, lacking))
            rounds += 1

    async def _round(self, request: RoundRequest, number: int, lacking: int) -> StreamResult:
        """Returns this rank's share of a round. It stops at its share of the missing rollouts, so that no rank waits
        for another here."""
        ranks = self.ranks
        # Places count on over the rounds of a step, and every rank takes each world-th one.
        first, places = number * request.places, range(ranks.rank, request.places, ranks.world)
        # In threads, because loading decodes and stores images, and the loop has rollouts of its own to serve.
        loaded = await asyncio.gather(*(in_thread(partial(request.group, place)) for place in places))
        groups = {first + place: group for place, group in zip(places, loaded, strict=True)}
        if request.prefetch is not None:
            request.prefetch(places)
        # Rounded up: a rank cannot see how far the others are, and a step that lacks one rollout needs another round.
        share = math.ceil(lacking / ranks.world)
        return await self.stream(groups, request.reward, self._until(share) if self.fill.stop_when_full else None)

    def _until(self, share: int) -> Callable[[Group], bool]:
        """Returns a predicate over finished groups: True once ``share`` members have a learning signal."""
        room = share

        def full(group: Group) -> bool:
            nonlocal room
            # Whole groups count, because a group cut at its first finished members would have a biased baseline.
            room -= chosen(self.credit([light(group).group]))
            return room <= 0

        return full

    def _credited(self, step: int, own: StreamResult, rounds: int) -> StepBatch:
        """Gathers the light groups of all ranks and credits them. Credit may depend on the whole batch, but not on how
        ranks share it."""
        local = {place: packed(group) for place, group in own.groups.items()}
        shares: list[tuple[dict[int, Wire], int]] = self.ranks.gather((local, own.cancelled))
        # By place, so that credit over the batch and the order of rows do not depend on which rank was quicker.
        wires = dict(sorted(item for groups, _ in shares for item in groups.items()))
        everyone = {place: unpacked(wire) for place, wire in wires.items()}
        credit = dict(zip(everyone, self.credit([each.group for each in everyone.values()]), strict=True))
        return StepBatch(step, own, everyone, credit, rounds, sum(cancelled for _, cancelled in shares))

    def save(self, batch: StepBatch, folder: Path) -> None:
        """Writes this rank's part of a batch into a checkpoint."""
        # Credit is not stored: ``load`` computes it again from the same groups, so there is one place that computes it.
        sizes = {str(place): len(group.members) for place, group in batch.own.groups.items()}
        words = {"step": batch.step, "rounds": batch.rounds, "cancelled": batch.own.cancelled, "sizes": sizes}
        records.append(self._file(folder, "jsonl"), batch.scored)
        disk.write_atomic(self._file(folder, "json"), json.dumps(words).encode())

    def load(self, folder: Path) -> StepBatch | None:
        """Reads the batch that ``save`` wrote, on all ranks; None if there is no file.

        Raises:
            InputError: a damaged file.
        """
        if not self._file(folder, "json").is_file():
            return None
        words = json.loads(self._file(folder, "json").read_text())
        scored = records.read(self._file(folder, "jsonl"), Scored)
        own: dict[int, Group] = {}
        for place, size in words["sizes"].items():
            # Members of a group lie one after the other, so the sizes alone divide the file.
            members = tuple(itertools.islice(scored, size))
            own[int(place)] = Group(members[0].trajectory.sample, members)
        return self._credited(words["step"], StreamResult(own, words["cancelled"], {}), words["rounds"])

    def _file(self, folder: Path, ending: str) -> Path:
        return folder / f"ahead-{self.ranks.rank}.{ending}"
