"""One run of a stage: what it was asked to do, where it works, and how its result becomes an artifact.

A stage that is killed finds its work folder again when the same command is given: the folder's name is the fingerprint
of the stage, its config and its parents' contents.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtcli.config.binding import SECTION_OF, bind
from vtcli.config.bounds import within
from vtcli.errors import InputError
from vtcli.protocols import Tracker
from vtcli.runs import slurm, track
from vtcli.store import codec, disk
from vtcli.store.artifacts import Artifact, ArtifactStore, Draft, Kind, require_name

SECTIONS = ("synth", "filter", "sft", "rl", "eval", "scoring", "serve")
"""Sections of the configuration that belong to one stage; see ``binding.SECTION_OF`` for that of judge."""

RUNTIME_KEYS = ("home", "reuse", "tracker", "hydra", "needs", "plan")
"""Top-level keys that say where and how a stage runs, not what it makes."""

_RUN_ID_FILE = "mlflow_run_id"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What every stage is told beside its own config."""

    name: str  # of the artifact
    home: Path
    seed: int
    reuse: bool = True
    tracker: Callable[[track.Context], Tracker] = track.null

    @classmethod
    def of(cls, job: Mapping[str, Any], default_name: str) -> RunSettings:
        """From a whole composed configuration: its keys name, home, seed, reuse, and tracker (a ``_target_`` node)."""
        node = job.get("tracker")
        seed = int(job.get("seed") or 0)
        within(seed, "seed", 0, 2**63 - 1)
        return cls(
            name=require_name(str(job.get("name") or default_name)),
            home=Path(str(job.get("home") or "artifacts")),
            seed=seed,
            reuse=bool(job.get("reuse", True)),
            tracker=bind(node, "tracker") if isinstance(node, Mapping) else track.null,
        )


@dataclass(frozen=True, slots=True)
class StageRun:
    """An open run. ``work`` outlives kill -9 and is removed after ``commit``; ``reused`` is the finished artifact when
    an identical one exists already, and then there is nothing to do; ``made`` is what this run committed.

    In ranks other than the first, ``tracker`` drops everything and ``commit`` is an error.
    """

    store: ArtifactStore
    work: Path
    tracker: Tracker
    fingerprint: str
    reused: Artifact | None = None
    _draft: Mapping[str, Any] = field(default_factory=dict[str, Any])
    made: list[Artifact] = field(default_factory=list[Artifact])

    def commit(self, folder: Path, summary: Mapping[str, Any] | None = None) -> Artifact:
        """Makes ``folder``, which must lie in ``work``, the next version of the artifact, and tells the tracker."""
        if not self._draft:
            raise InputError("Only the first rank of an unfinished run can commit an artifact.")
        if self.work.resolve() not in folder.resolve().parents:
            raise InputError(f"{folder} cannot become an artifact: it must be a folder inside {self.work}.")
        artifact = Draft(self.store, path=folder, fingerprint=self.fingerprint, **self._draft).commit(summary or {})
        self.made.append(artifact)
        self.tracker.tags({"vtcli.artifact": artifact.ref, "vtcli.digest": artifact.digest})
        return artifact


@contextmanager
def open_run(
    settings: RunSettings,
    stage: str,
    kind: Kind,
    config: Mapping[str, Any],
    parents: Sequence[Artifact],
    *,
    runtime_keys: Sequence[str] = (),
) -> Generator[StageRun]:
    """Opens the work folder of exactly this run, with its lock and its tracker, and closes them however the block ends.

    ``config`` is recorded in the manifest; what it says about ``RUNTIME_KEYS``, other stages' sections and the dotted
    ``runtime_keys`` (say "synth.workers") does not count for the fingerprint. Raises ``InputError`` when another
    process runs the same, or when ``home`` cannot be written. A requeued Slurm job waits for its earlier self.
    """
    store = ArtifactStore(settings.home)
    key = fingerprint(stage, kind, settings, config, parents, runtime_keys=runtime_keys)
    work = settings.home / ".work" / f"{stage}-{key[:12]}"
    if os.environ.get("RANK", "0") != "0":
        yield StageRun(store, work, track.NullTracker(), key, _finished(store, settings, key))
        return
    patience_s = slurm.REQUEUED_WAIT_S if slurm.was_requeued() else 0.0
    with disk.locked(work.with_suffix(".lock"), patience_s, f"the work folder of {stage} {settings.name}"):
        done = _finished(store, settings, key)
        if done:
            _log.warning("%s was made by this very command; reuse=false makes it again.", done.ref)
            shutil.rmtree(work, ignore_errors=True)  # there is one when the earlier run was killed after its commit
            yield StageRun(store, work, track.NullTracker(), key, done)
            return
        with disk.checked(work, "make the folder"):
            work.mkdir(parents=True, exist_ok=True)
        tracker = _open_tracker(settings, stage, work, config, parents)
        draft = {
            "name": settings.name,
            "kind": kind,
            "parents": tuple(parents),
            "config": codec.encode(config),
            "seed": settings.seed,
            "stage": stage,
            "run_id": tracker.run_id,
        }
        run = StageRun(store, work, tracker, key, _draft=draft)
        status = "FAILED"
        try:
            yield run
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit):
            status = "KILLED"
            raise
        finally:
            tracker.close(status)
        if run.made:
            shutil.rmtree(work, ignore_errors=True)


def fingerprint(
    stage: str,
    kind: Kind,
    settings: RunSettings,
    config: Mapping[str, Any],
    parents: Sequence[Artifact],
    *,
    runtime_keys: Sequence[str] = (),
) -> str:
    """sha256 over what a run makes: stage, kind, name, seed, config and the parents' contents."""
    others = {name for name in SECTIONS if name != SECTION_OF.get(stage, stage)}
    kept = {k: v for k, v in codec.encode(config).items() if k not in RUNTIME_KEYS and k not in others}
    for dotted in runtime_keys:
        kept = _without(kept, dotted.split("."))
    value = [stage, kind, settings.name, settings.seed, kept, [parent.digest for parent in parents]]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _without(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    left = {key: value for key, value in values.items() if key != path[0] or len(path) > 1}
    if len(path) > 1 and isinstance(left.get(path[0]), Mapping):
        left[path[0]] = _without(left[path[0]], path[1:])
    return left


def _finished(store: ArtifactStore, settings: RunSettings, key: str) -> Artifact | None:
    return store.find(key) if settings.reuse else None


def _open_tracker(
    settings: RunSettings, stage: str, work: Path, config: Mapping[str, Any], parents: Sequence[Artifact]
) -> Tracker:
    """Continues the tracker's run of an earlier attempt, whose id lies in the work folder."""
    memory = work / _RUN_ID_FILE
    with disk.checked(memory, "read"):
        earlier = memory.read_text().strip() if memory.exists() else None
    tags = {"vtcli.name": settings.name, "vtcli.seed": str(settings.seed)}
    tracker = settings.tracker(track.Context(settings.home, stage, settings.name, earlier, tags))
    if tracker.run_id and tracker.run_id != earlier:
        disk.write_atomic(memory, tracker.run_id.encode())
    tracker.params(config)
    if parents:
        tracker.inputs([_link(parent) for parent in parents], stage)
    return tracker


def _link(artifact: Artifact) -> dict[str, Any]:
    return {
        "ref": artifact.ref,
        "kind": artifact.kind,
        "digest": artifact.digest,
        "path": str(artifact.path.resolve()),
        "run_id": artifact.manifest.run_id,
    }


def wait_for_commit(run: StageRun, timeout_s: float = 600.0) -> Artifact:
    """The other ranks' view of what the first rank commits. Raises ``InputError`` when it does not within the limit."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (artifact := run.store.find(run.fingerprint)) is not None:
            return artifact
        time.sleep(0.5)
    raise InputError(f"The first rank committed no artifact within {timeout_s:.0f} s: see its messages.")
