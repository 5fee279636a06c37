"""The memory of rollouts: what an agent has answered is not asked again, whichever stage asked it.

A rollout is found by a digest of everything that decides it: the weights, the whole agent, this package's own rollout
code, the question, the seed and the sampling. Its signals are kept with a digest of what measured them, so a better
scorer costs a new measurement and no rollout.

Each agent has one folder, a *shelf*. Every process appends to its own file there, so that the shards of a job
array share a shelf without locks, also on a network file system. The pictures that tools made are links beside it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal, cast

from vtcli import __version__, judging
from vtcli.config.binding import TARGET
from vtcli.judging.rubrics import load as load_rubric
from vtcli.rollout.loop import RolloutRequest
from vtcli.schema import Signals, Trajectory
from vtcli.session.agent import UNCOUNTED, Agent
from vtcli.store import codec, disk, records, videos
from vtcli.store.images import ImageStore, image_file
from vtcli.store.journal import Journal
from vtcli.store.removal import ROLLOUTS, bound_rollouts
from vtcli.store.retention import link
from vtcli.store.sources import outside_code, rollout_source, scoring_source, targets


def folder_of(home: Path, work: Path, memory: Literal["on", "off"]) -> Path:
    """Returns the folder that remembers a run's rollouts: the home's, or with ``off`` one for attempts of this run."""
    return home / ROLLOUTS if memory == "on" else work / "rollouts"


_NAMES = re.compile(rb'"names": \[([^\]]*)\]')
_HEAD = 512  # bytes of a line in which its names stand


@dataclass(frozen=True, slots=True)
class Remembered:
    """One line of a shelf: a rollout, its signals, and what they were measured by."""

    names: tuple[str, ...]  # digests by which it is found
    measured: str  # digest of the signals, the judge and the code that measured it
    made: str  # UTC, ISO 8601
    version: str  # of vtcli
    trajectory: Trajectory
    signals: Signals


class RolloutMemory:
    """The shelf of one agent. ``images`` is the run's store, into which pictures of a remembered rollout are linked.

    Raises:
        InputError: disk trouble.
    """

    def __init__(self, root: Path, shelf: str, images: ImageStore) -> None:
        self.folder, self._images = root / shelf, images
        self._journal = Journal(self.folder / f"{secrets.token_hex(8)}.jsonl")
        self._places: dict[str, tuple[Path, int, int]] | None = None  # file, first byte, length; by name

    def get(self, name: str) -> Remembered | None:
        """The rollout of this name. None too where a picture of it is gone."""
        if self._places is None:
            self._places = dict(self._scan())
            if self.folder.is_dir():
                os.utime(self.folder)  # it is in use
        if (place := self._places.get(name)) is None:
            return None
        path, start, length = place
        with disk.checked(path, "read"), path.open("rb") as file:
            file.seek(start)
            line = file.read(length)
        found = records.parse(line, (Remembered,), f"{path}, byte {start}")
        for sha in _made(found.trajectory):
            kept, here = image_file(self.folder / "images", sha), image_file(self._images.root, sha)
            if not kept.exists():
                return None
            link(kept, here)
        return found

    def put(self, names: Sequence[str], measured: str, trajectory: Trajectory, signals: Signals) -> None:
        """Stores a rollout. A later one of the same name takes its place."""
        for sha in _made(trajectory):
            link(self._images.path(sha), image_file(self.folder / "images", sha))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        path = self._journal.path
        if not path.exists() and self.folder.parent.name == ROLLOUTS:
            bound_rollouts(self.folder.parents[1])
        start = path.stat().st_size if path.exists() else 0
        self._journal.add(Remembered(tuple(names), measured, now, __version__, trajectory, signals))
        if self._places is not None:
            self._places |= dict.fromkeys(names, (path, start, path.stat().st_size - start))

    def _scan(self) -> Iterable[tuple[str, tuple[Path, int, int]]]:
        """Names and places of all whole lines, the newest file last. Lines are not decoded: a filter's shelf may hold
        some hundred thousand."""
        paths = sorted(self.folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        for path in paths:
            with disk.checked(path, "read"), path.open("rb") as file:
                start = 0
                for line in file:
                    head = _NAMES.search(line, 0, _HEAD)
                    if head and line.endswith(b"\n"):  # else its writer was killed
                        for name in json.loads(b"[" + head[1] + b"]"):
                            yield name, (path, start, len(line))
                    start += len(line)


def _made(trajectory: Trajectory) -> list[str]:
    """Hashes of the pictures that the question does not bring along."""
    refs = trajectory.images[len(trajectory.sample.images) :]
    return list(dict.fromkeys(sha for ref in refs for sha in (ref.full, ref.view)))


def shelf_name(agent: Agent, weights: object, **more: object) -> str:
    """Digest of the weights, the agent and ``more`` that decides a rollout; what only measures it is left out."""
    counted = {f.name: getattr(agent, f.name) for f in fields(agent) if f.name not in ("signals", "judge", *UNCOUNTED)}
    # An engine from outside is another policy; ours differ in speed and in the last bit.
    counted |= {"limits": replace(agent.limits, timeout_s=1.0), "engine": agent.engine.own}
    value = described({"weights": weights, "agent": counted, **more})
    return _digest([value, outside_code([*targets(value), *agent.families.values()]), rollout_source()])


def measure_name(signals: Iterable[object], judge: object, rubrics: Iterable[str], **more: object) -> str:
    """Digest of what measures a rollout: signals, judge, the texts of its rubrics, and their code."""
    value = described({"signals": list(signals), **more}) | {"judge": described(judge, leave_out=judging.WHERE)}
    texts = {rubric: codec.encode(load_rubric(rubric)) for rubric in rubrics}
    return _digest([value, texts, outside_code(targets(value)), scoring_source()])


def request_name(request: RolloutRequest, **more: object) -> str:
    """Digest of the question, the seed, the sampling, and what the rollout continues."""
    sample = request.sample
    shown = tuple(replace(video, path=videos.address(video)) for video in sample.videos)
    # In which split a question stands changes no rollout.
    return _digest([codec.encode(replace(request, sample=replace(sample, videos=shown, split=""))), more])


def described(value: Any, leave_out: Sequence[str] = ()) -> Any:
    """Plain values for a digest: dataclasses by their fields, bound functions by their path and keywords.

    A function without a path, such as a lambda, gets a name that nothing else has: what it does cannot be compared.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, functools.partial):
        bound = cast("functools.partial[Any]", value)
        given = {k: described(v, leave_out) for k, v in bound.keywords.items() if k not in leave_out}
        return {TARGET: _path(bound.func), "positional": [described(v, leave_out) for v in bound.args], **given}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        kept = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in leave_out}
        return {"type": _path(type(value)), **{key: described(item, leave_out) for key, item in kept.items()}}
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return {str(key): described(item, leave_out) for key, item in pairs.items() if key not in leave_out}
    if isinstance(value, list | tuple):
        return [described(item, leave_out) for item in cast("Sequence[Any]", value)]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(described(item, leave_out)) for item in cast("Iterable[Any]", value))
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return {TARGET: _path(value)}
    raise TypeError(f"{type(value).__name__} has no description")


def _path(function: Callable[..., Any]) -> str:
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '<locals>')}"
    return f"{name} {secrets.token_hex(8)}" if "<" in name or inspect.ismethod(function) else name


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
