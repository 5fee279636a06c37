"""The memory of rollouts: no stage asks an agent for a rollout that another stage, or an earlier run, has made.

The key of a rollout is a digest of all that decides it: the weights, the whole agent, this package's rollout code, the
question, the seed and the sampling. A second digest, of all that measures it, stands beside its signals, so a
better scorer measures again and rolls nothing out.

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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal, cast

from vtcli import __version__, judging
from vtcli.config.binding import TARGET
from vtcli.errors import InputError
from vtcli.judging.rubrics import load as load_rubric
from vtcli.rollout.loop import RolloutRequest
from vtcli.schema import Signals, Trajectory
from vtcli.session.agent import UNCOUNTED, Agent
from vtcli.store import codec, records, videos
from vtcli.store.images import ImageStore, image_file
from vtcli.store.journal import Journal
from vtcli.store.manifest import hash_file
from vtcli.store.removal import ROLLOUTS, bound_rollouts
from vtcli.store.retention import link
from vtcli.store.sources import files_of, outside_code, rollout_source, scoring_source, targets


def folder_of(home: Path, work: Path, memory: Literal["on", "off"]) -> Path:
    """Returns the folder that remembers a run's rollouts: the home's, or with ``off`` one for attempts of this run."""
    # Even with ``off`` an interrupted run needs its own rollouts, or a resume would ask for all of them again.
    return home / ROLLOUTS if memory == "on" else work / "rollouts"


_HEAD = re.compile(rb'.{0,99}?"names": \[([^\]]{0,999})\], "measured": "([0-9a-f]*)"')
"""The beginning of a line: lines are decoded only when they are wanted, as a filter's shelf may have 10^5 of them."""

_TOUCHED_S = 60.0  # seconds between two marks that a shelf is in use

_Place = tuple[Path, int, int]  # file, first byte, length


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One line of a shelf: a rollout and its signals."""

    names: tuple[str, ...]  # digests by which it is found
    measured: str  # digest of the signals, the judge and the code that measured it
    made: str  # UTC, ISO 8601
    version: str  # of vtcli
    trajectory: Trajectory
    signals: Signals


class RolloutMemory:
    """The shelf of one agent. ``images`` is the run's store, into which pictures of a remembered rollout are linked."""

    def __init__(self, root: Path, shelf: str, images: ImageStore) -> None:
        self.folder, self._images = root / shelf, images
        self._journal = Journal(self.folder / f"{secrets.token_hex(8)}.jsonl")
        self._places: dict[str, dict[str, _Place]] | None = None  # by name, then by what measured; the newest last
        self._touched = float("-inf")

    def get(self, name: str, measured: str) -> RolloutRecord | None:
        """Returns the rollout of this name, preferably with the signals ``measured``, else with others.

        None also for a rollout that cannot be read or lacks a picture, because it can be made again.
        """
        if self._places is None:
            self._places = self._scan()
            self._touch()
        places = self._places.get(name, {})
        for place in ([places[measured]] if measured in places else []) + list(reversed(places.values())):
            if (stored := self._read(place)) is not None:
                return stored
        return None

    def put(self, names: Sequence[str], measured: str, trajectory: Trajectory, signals: Signals) -> None:
        """Stores a rollout. Raises ``InputError`` for disk trouble."""
        for sha in _made(trajectory):
            link(self._images.path(sha), image_file(self.folder / "images", sha))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        path = self._journal.path
        start = path.stat().st_size if path.exists() else 0
        self._journal.add(RolloutRecord(tuple(names), measured, now, __version__, trajectory, signals))
        self._touch()
        if self._places is not None:
            _add(self._places, names, measured, (path, start, path.stat().st_size - start))

    def make_room(self) -> None:
        """Removes other agents' rollouts where all of them take too much; call it in a thread, as it reads folders."""
        if self.folder.parent.name == ROLLOUTS:
            self._touch()
            bound_rollouts(self.folder.parents[1])

    def _read(self, place: _Place) -> RolloutRecord | None:
        path, start, length = place
        try:
            with path.open("rb") as file:
                file.seek(start)
                line = file.read(length)
            record = records.parse(line, (RolloutRecord,), f"{path}, byte {start}")
        except (OSError, InputError):  # removed, damaged, or of another version
            return None
        for sha in _made(record.trajectory):
            kept, here = image_file(self.folder / "images", sha), image_file(self._images.root, sha)
            # A rollout without its pictures could not be shown to a judge or in a report, so it counts as absent.
            if not kept.exists():
                return None
            link(kept, here)
        return record

    def _scan(self) -> dict[str, dict[str, _Place]]:
        """Places of all whole lines that can be read, the newest file last."""
        places: dict[str, dict[str, _Place]] = {}
        changed: dict[Path, int] = {}
        for path in self.folder.glob("*.jsonl"):
            with suppress(OSError):
                changed[path] = path.stat().st_mtime_ns
        # In the order of their last change, so that the newest rollout of a name replaces older ones in ``_add``.
        for path in sorted(changed, key=changed.__getitem__):
            start = 0
            with suppress(OSError), path.open("rb") as file:
                for line in file:
                    # A line without its end is one at which its writer was killed.
                    if (head := _HEAD.match(line)) and line.endswith(b"\n"):
                        names = [part.strip(b' "').decode(errors="replace") for part in head[1].split(b",")]
                        _add(places, names, head[2].decode(), (path, start, len(line)))
                    start += len(line)
        return places

    def _touch(self) -> None:
        """Marks the shelf as used, so that nothing makes room of it. A shelf of another user cannot be marked."""
        if (now := time.monotonic()) - self._touched > _TOUCHED_S and self.folder.is_dir():
            self._touched = now
            with suppress(OSError):
                os.utime(self.folder)


def _add(places: dict[str, dict[str, _Place]], names: Iterable[str], measured: str, place: _Place) -> None:
    for name in names:
        # A dict keeps the order of insertion: popping first moves a known digest to the end.
        own = places.setdefault(name, {})
        own.pop(measured, None)  # the newest comes last
        own[measured] = place


def _made(trajectory: Trajectory) -> list[str]:
    """Hashes of the pictures that the question does not bring along."""
    # The question's images belong to the dataset, which has them already.
    refs = trajectory.images[len(trajectory.sample.images) :]
    return list(dict.fromkeys(sha for ref in refs for sha in (ref.full, ref.view)))


def shelf_name(agent: Agent, weights: object, **more: object) -> str:
    """Returns a digest of all that decides a rollout: weights, agent, ``more`` and code. Signals and the judge only
    measure it, so they are left out."""
    # By leaving out and not by naming: a new field of the agent changes the digest until somebody decides otherwise.
    counted = {f.name: getattr(agent, f.name) for f in fields(agent) if f.name not in ("signals", "judge", *UNCOUNTED)}
    # An engine from outside is another policy; ours differ in speed and in the last bit.
    counted |= {"limits": replace(agent.limits, timeout_s=1.0), "engine": agent.engine.own}
    # The time-out is fixed to one value because it decides how long a rollout may take, not what it is.
    value = described({"weights": weights, "agent": counted, **more})
    code = outside_code([*targets(value), *agent.families.values()])
    return _digest([value, _files(value), code, rollout_source()])


def measure_name(signals: Iterable[object], judge: object, rubrics: Iterable[str], **more: object) -> str:
    """Returns a digest of all that measures a rollout: signals, judge, the texts of its rubrics, and their code."""
    value = described({"signals": list(signals), **more}) | {"judge": described(judge, leave_out=judging.WHERE)}
    texts = {rubric: codec.encode(load_rubric(rubric)) for rubric in rubrics}
    return _digest([value, _files(value), texts, outside_code(targets(value)), scoring_source()])


def _files(value: Any) -> dict[str, str]:
    """Hashes the files that a plug's values name, such as a table or the program of a server."""
    return {str(path): hash_file(path) for path in files_of(value)}


def request_name(request: RolloutRequest) -> str:
    """Returns a digest of the question, the seed, the sampling, and the trajectory that a rollout continues."""
    sample = request.sample
    # By content, because the same clip lies at another path in another dataset or on another machine.
    shown = tuple(replace(video, path=videos.content(video)) for video in sample.videos)
    # In which split a question stands changes no rollout.
    return _digest(codec.encode(replace(request, sample=replace(sample, videos=shown, split=""))))


def described(value: Any, leave_out: Sequence[str] = ()) -> Any:
    """Turns a value into plain ones for a digest: dataclasses by their fields, functions by path and keywords.

    A function without an importable path, such as a lambda, gets a unique name, so nothing else ever equals it.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, functools.partial):
        bound = cast("functools.partial[Any]", value)
        keywords = {k: described(v, leave_out) for k, v in bound.keywords.items() if k not in leave_out}
        return {TARGET: _path(bound.func), "positional": [described(v, leave_out) for v in bound.args], **keywords}
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
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return {TARGET: _path(value)}
    raise TypeError(f"{type(value).__name__} has no description")


def _path(function: Callable[..., Any]) -> str:
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '<locals>')}"
    # Random, because two lambdas with one name may compute different things, and a wrong hit would be silent.
    return f"{name} {secrets.token_hex(8)}" if "<" in name or inspect.ismethod(function) else name


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
