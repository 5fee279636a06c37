"""The newest trajectories of a server with their images, to look at; older ones and their images go."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from vtcli.schema import SCHEMA_VERSION, EnvTurn, ImageRef, Scored, Signals, Trajectory
from vtcli.serve import answers
from vtcli.store import codec
from vtcli.store.leases import Lease
from vtcli.store.videos import portable

ID = re.compile(r"chat-[0-9a-f]{24}/answer/[0-9a-f]{16}")
"""Ids of served trajectories: question, form and seed."""

Record = Callable[[Scored], None]
"""Stores a trajectory for good."""


class History:
    """The newest ``keep`` trajectories by id. With ``record`` each is stored as well, and its images stay."""

    def __init__(self, keep: int = 0, record: Record | None = None) -> None:
        self.keep, self.record = keep, record
        self._kept: OrderedDict[str, tuple[Trajectory, Lease]] = OrderedDict()

    def add(self, trajectory: Trajectory, lease: Lease) -> None:
        """Takes over a finished trajectory and the lease of its images. In any one thread."""
        if self.record is not None:
            self.record(portable(Scored(trajectory, Signals({}), None)))
            lease.settle()
        if (before := self._kept.pop(trajectory.id, None)) is not None:
            before[1].release()
        self._kept[trajectory.id] = (trajectory, lease)
        while len(self._kept) > self.keep:
            self._kept.popitem(last=False)[1][1].release()

    @property
    def newest(self) -> list[Trajectory]:
        """All that are kept, the newest last."""
        return [trajectory for trajectory, _ in self._kept.values()]

    def find(self, name: str) -> Trajectory | None:
        """A trajectory by id; None for one that is not kept."""
        kept = self._kept.get(name)
        return kept[0] if kept else None


def shown(found: Trajectory) -> dict[str, Any]:
    """A trajectory to read, and under ``record`` the line that ``vtcli judge`` reads of a JSONL file."""
    question, last = found.sample, found.policy_turns[-1:]
    record = {"schema_version": SCHEMA_VERSION, "type": "Scored"}
    record["value"] = codec.encode(portable(Scored(found, Signals({}), None)))
    return {
        "id": found.id,
        "object": "vtcli.trajectory",
        "question": question.question,
        "stop": str(found.stop),
        "error": found.error,
        "answer": found.answer,
        "seed": found.seed,
        "version": last[0].version if last else None,
        "turns": [_turn(found, number) for number in range(len(found.turns))],
        "images": [_image(index, ref) for index, ref in enumerate(found.images)],
        "record": record,
    }


def _turn(found: Trajectory, number: int) -> dict[str, Any]:
    turn = found.turns[number]
    if isinstance(turn, EnvTurn):
        known = answers.known(found, number)
        text = {"role": "world", "text": turn.observation.text}
        return text | answers.step(number, turn.observation, found.images, known)
    facts = {"tokens": len(turn.token_ids), "finish": turn.completion.finish}
    return {"role": "policy", "turn": number, "text": turn.text} | facts


def _image(index: int, ref: ImageRef) -> dict[str, Any]:
    return {"index": index} | answers.picture(ref)
