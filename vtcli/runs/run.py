"""One run of a stage: its request, its work folder, and the commit of its result as an artifact.

A killed stage finds its work folder again when the same command is given. The folder's name is the digest of the stage,
its config and its parents' contents. Work that began with other files or other code is never continued.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from vtcli.config.binding import SECTION_OF, TARGET, KeyProblem, bind
from vtcli.config.bounds import OutOfBounds, within
from vtcli.config.commandline import overrides
from vtcli.errors import InputError
from vtcli.protocols import Tracker
from vtcli.runs import slurm, track
from vtcli.runs.identity import Identity, identify, listed
from vtcli.store import codec, disk
from vtcli.store.artifacts import Artifact, ArtifactStore, Draft, Kind, require_name
from vtcli.store.hashes import FileGroup, digests

SECTIONS = ("synth", "filter", "sft", "rl", "eval", "scoring", "serve")
"""Sections of the configuration that belong to one stage; see ``binding.SECTION_OF`` for that of judge."""

RUNTIME_KEYS = ("home", "reuse", "memory", "make_missing", "shipped", "tracker", "hydra", "needs", "plan", "launch")
"""Top-level keys that say where and how a stage runs, not what it makes."""

REPEATED_KEYS = ("scale", "model", "agent")
"""Top-level keys that stand for values elsewhere: what a stage takes of them is in its own section."""

MEMORY_KEYS = ("batch_tokens", "offload", "activation_checkpointing", "sleep", "entropy")
"""Keys of a learner's ``backend`` that set the place and the portions of its computation, and what it measures beside.
Results agree up to rounding."""

SANDBOX_KEYS = ("active", "live", "minimum_tier", "outer_boundary", "tier", "start_timeout_s")
"""Keys of ``sandbox`` that set the confinement of code, not its results."""

HASHES = "hashes.json"  # in .work: what is known of files outside the store
FEW_KEYS = 3
"""Interrupted runs that differ in more keys are not named at the start of another."""

_IDENTITY_FILE = "identity.json"
_KEYS_FILE = "keys.json"  # in a work folder: the configuration that the identity counts
_RUN_ID_FILE = "mlflow_run_id"
_NO_WORK = {_IDENTITY_FILE, _KEYS_FILE, _RUN_ID_FILE, "images"}
"""Names in a work folder before the first result. A run that refused its input left no others."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings that every stage gets beside its own config."""

    name: str  # of the artifact
    home: Path
    seed: int
    reuse: bool = True
    tracker: Callable[[track.Context], Tracker] = track.null

    @classmethod
    def of(cls, job: Mapping[str, Any], default_name: str) -> RunSettings:
        """Reads a whole composed configuration: its keys name, home, seed, reuse, and tracker (a ``_target_`` node).

        Raises:
            KeyProblem: a name, a home or a seed that cannot be one.
        """
        node, home = job.get("tracker"), job.get("home", "artifacts")
        seed = int(job.get("seed") or 0)
        try:
            within(seed, "seed", 0, 2**63 - 1)
            name = require_name(default_name if job.get("name") is None else str(job["name"]))
        except OutOfBounds as problem:
            raise KeyProblem(problem.field, problem.message) from None
        except InputError as problem:
            raise KeyProblem("name", str(problem)) from None
        if not home:
            advice = "Give home=FOLDER or VTCLI_HOME, or neither for artifacts"
            raise KeyProblem("home", f"expected a folder, got {home!r}. {advice}")
        return cls(
            name=name,
            home=Path(str(home)),
            seed=seed,
            reuse=bool(job.get("reuse", True)),
            tracker=_trackers(node),
        )


def _trackers(node: Any) -> Callable[[track.Context], Tracker]:
    """The makers of all trackers of the section ``tracker``: nodes by name, and one of the user's that has none."""
    if not isinstance(node, Mapping) or not node:
        return track.null
    section = cast("Mapping[str, Any]", node)
    named = {name: each for name, each in section.items() if isinstance(each, Mapping) and TARGET in each}
    makers = {name: bind(each, f"tracker.{name}") for name, each in named.items()}
    if TARGET in section:
        makers["own"] = bind({key: value for key, value in section.items() if key not in named}, "tracker")
    return partial(track.SeveralTrackers, makers=makers)


@dataclass(frozen=True, slots=True)
class StageRun:
    """An open run. ``work`` outlives kill -9 and is removed after ``commit``; ``reused`` is the finished artifact when
    an identical one exists already, and then there is nothing to do; ``made`` is what this run committed.

    In ranks other than the first, ``tracker`` drops everything and ``commit`` is an error.
    """

    store: ArtifactStore
    work: Path
    tracker: Tracker
    identity: Identity
    reused: Artifact | None = None
    inputs: Mapping[str, Path | FileGroup] = field(default_factory=dict[str, Path])
    _draft: Mapping[str, Any] = field(default_factory=dict[str, Any])
    made: list[Artifact] = field(default_factory=list[Artifact])

    def commit(self, folder: Path, summary: Mapping[str, Any] | None = None) -> Artifact:
        """Makes ``folder``, which must lie in ``work``, the next version of the artifact, and tells the tracker."""
        if not self._draft:
            raise InputError("Only the first rank of an unfinished run can commit an artifact.")
        if self.work.resolve() not in folder.resolve().parents:
            raise InputError(f"{folder} cannot become an artifact: it must be a folder inside {self.work}.")
        self._require_unchanged_inputs()
        artifact = Draft(self.store, path=folder, **self._draft).commit(summary or {})
        self.made.append(artifact)
        self.tracker.tags({"vtcli.artifact": artifact.ref, "vtcli.digest": artifact.digest})
        return artifact

    def _require_unchanged_inputs(self) -> None:
        now = replace(self.identity, files={**self.identity.files, **digests(self.inputs, self.work.parent / HASHES)})
        if changed := self.identity.changes(now):
            raise InputError(
                f"{listed(changed)} changed while it was read, so that old and new content would mix. No artifact is "
                "made. Give the same command again when the files stay as they are."
            )


@dataclass(frozen=True, slots=True)
class Scope:
    """Parts of a run's identity beside its configuration, and the configuration keys that the identity leaves out."""

    runtime_keys: Sequence[str] = ()  # dotted keys that change nothing in what is made, say "synth.workers"
    inputs: Mapping[str, Path | FileGroup] = field(
        default_factory=dict[str, Path | FileGroup]
    )  # files outside of artifacts that are read
    when_changed: Literal["refuse", "anew"] = "refuse"  # inputs or code, since an earlier attempt was interrupted:
    # its work is refused, or dropped
    several: bool = False  # processes of the same request at a time; each has a work folder of its own
    lineage: Sequence[Artifact] = ()  # parents that change nothing in what is made, such as a validation's data


def first_rank() -> bool:
    """Returns True in the process that checks a run's inputs and commits its artifact."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def open_run(
    settings: RunSettings,
    stage: str,
    kind: Kind,
    config: Mapping[str, Any],
    parents: Sequence[Artifact],
    scope: Scope | None = None,
) -> Generator[StageRun]:
    """Opens the work folder of exactly this run, with its lock and its tracker, and closes them however the block ends.

    ``config`` is recorded in the manifest; what it says about ``RUNTIME_KEYS``, other stages' sections and
    ``scope.runtime_keys`` does not count for the identity; the content of ``scope.inputs`` and the source of plug
    points do.

    Raises ``InputError`` when another process runs the same, or when ``home`` cannot be written. A requeued Slurm job
    waits for its earlier self.
    """
    store, scope = ArtifactStore(settings.home), scope or Scope()
    request = fingerprint(stage, kind, settings, config, parents, runtime_keys=scope.runtime_keys)
    counted = _counted(stage, config, scope.runtime_keys)
    work = settings.home / ".work" / f"{stage}-{request[:12]}"
    if not first_rank():
        identity = identify(request, counted, scope.inputs, work.parent / HASHES)
        yield StageRun(store, work, track.NullTracker(), identity, _finished(store, settings, identity))
        return
    with _locked(work, f"the work folder of {stage} {settings.name}", scope.several) as work:
        identity = identify(request, counted, scope.inputs, work.parent / HASHES)
        done = _finished(store, settings, identity)
        if done:
            _log.warning("%s was made by this very command; reuse=false makes it again.", done.ref)
            shutil.rmtree(work, ignore_errors=True)  # there is one when the earlier run was killed after its commit
            yield StageRun(store, work, track.NullTracker(), identity, done)
            return
        keys = json.dumps({"name": settings.name, "seed": settings.seed, **counted})
        _say_what_differs(work, stage, keys)
        _begin(work, identity, scope.when_changed)
        disk.write_atomic(work / _KEYS_FILE, keys.encode())
        _say_why_anew(store, settings, identity)
        above = (*parents, *scope.lineage)
        tracker = _open_tracker(settings, stage, work)
        draft = {"name": settings.name, "kind": kind, "parents": above, "config": codec.encode(config)}
        draft |= {"seed": settings.seed, "stage": stage, "run_id": tracker.run_id}
        draft |= {"fingerprint": identity.fingerprint, "identity": identity.plain, "overrides": overrides()}
        run = StageRun(store, work, tracker, identity, inputs=scope.inputs, _draft=draft)
        status = "FAILED"
        try:
            _introduce(run, stage, config, above)
            yield run
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit):
            status = "KILLED"
            raise
        finally:
            tracker.close(status)
        if run.made:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(work: Path, what: str, several: bool) -> Generator[Path]:
    """The work folder for this process alone. With ``several`` it is the first of NAME, NAME-2, … that no other has, so
    that one which a killed process left is found again."""
    patience_s = slurm.REQUEUED_WAIT_S if slurm.was_requeued() and not several else 0.0
    for number in itertools.count(1):
        place = work if number == 1 else work.with_name(f"{work.name}-{number}")
        with ExitStack() as stack:
            try:
                stack.enter_context(disk.locked(place.with_suffix(".lock"), patience_s, what))
            except disk.LockHeld:
                if not several:
                    raise
                continue
            yield place
            return


def _has_content(path: Path) -> bool:
    """True unless it is an empty file, or a folder of such: a run that failed before its first result left these."""
    return any(each.is_file() and each.stat().st_size for each in (path, *path.rglob("*")))


def _begin(work: Path, identity: Identity, when_changed: Literal["refuse", "anew"]) -> None:
    """The work folder, with the identity that its content has. Source of our own that changed is no reason to lose
    work: an interrupted run goes on with a mended version."""
    memory = work / _IDENTITY_FILE
    if memory.exists():
        with disk.checked(memory, "read"):
            earlier = Identity.read(json.loads(memory.read_text()))
        if changed := earlier.changes(identity):
            done = any(path.name not in _NO_WORK and _has_content(path) for path in work.iterdir())
            if done and when_changed == "refuse":
                raise InputError(
                    f"{listed(changed)} changed since an earlier attempt of this run was interrupted. Its work would "
                    f"mix with the new. Put back what it was begun with to continue, or begin anew: remove {work} and "
                    "give the command again."
                )
            if done:
                _log.warning(
                    "%s changed since this was interrupted: its work is dropped and all made anew.", listed(changed)
                )
            shutil.rmtree(work)
        elif earlier.package != identity.package:
            _log.warning("The source of vtcli changed since this run was interrupted; it goes on with the new one.")
    with disk.checked(work, "make the folder"):
        work.mkdir(parents=True, exist_ok=True)
    disk.write_atomic(memory, json.dumps(identity.plain).encode())


def _say_what_differs(work: Path, stage: str, text: str) -> None:
    """Warns at the start of a run if one that was interrupted differs from it in a few keys, as ``zero_stage``. Of
    several it names the newest that had begun to work."""
    now, found = dict(track.flatten(json.loads(text))), list(work.parent.glob(f"{stage}-*/{_KEYS_FILE}"))
    for memory in sorted(found, key=_changed_at, reverse=True) if not work.exists() else []:
        try:
            if not disk.is_free(memory.parent.with_suffix(".lock")):
                continue  # it runs
            if not any(each.name not in _NO_WORK and _has_content(each) for each in memory.parent.iterdir()):
                continue  # it failed before its first result
            earlier = dict(track.flatten(json.loads(memory.read_text())))
        except (OSError, ValueError):  # it has just finished, or is none of ours: no reason to end this run
            continue
        keys = sorted(key for key in {*earlier, *now} if earlier.get(key) != now.get(key))
        if "name" not in keys and 0 < len(keys) <= FEW_KEYS:
            there = ", ".join(f"{key}={earlier.get(key)}" for key in keys)
            _log.warning(
                "This run begins anew. The one in %s had %s: give that again to go on with it.", memory.parent, there
            )
            return


def _changed_at(path: Path) -> float:
    """0 where it has just gone."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _say_why_anew(store: ArtifactStore, settings: RunSettings, identity: Identity) -> None:
    """Warns if the same command has already made an artifact from other files or with other code."""
    made = [a for a in store.ls() if a.manifest.identity.get("request") == identity.request]
    if made and settings.reuse:
        earlier = Identity.read(made[-1].manifest.identity)
        changed = earlier.changes(identity) or ["the source of vtcli"]
        _log.warning("%s changed since this command made %s: it is made anew.", listed(changed), made[-1].ref)


def fingerprint(
    stage: str,
    kind: Kind,
    settings: RunSettings,
    config: Mapping[str, Any],
    parents: Sequence[Artifact],
    *,
    runtime_keys: Sequence[str] = (),
) -> str:
    """sha256 over what a run is asked to make: stage, kind, name, seed, config and the parents' contents."""
    kept = _counted(stage, config, runtime_keys)
    value = [stage, kind, settings.name, settings.seed, kept, [parent.digest for parent in parents]]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _counted(stage: str, config: Mapping[str, Any], runtime_keys: Sequence[str]) -> dict[str, Any]:
    """Returns the keys of a configuration that decide the result. ``data`` lists generators, which only synth reads."""
    others = {name for name in SECTIONS if name != SECTION_OF.get(stage, stage)}
    others |= {*RUNTIME_KEYS, *REPEATED_KEYS, *(["data"] if stage != "synth" else [])}
    kept: dict[str, Any] = {k: v for k, v in codec.encode(config).items() if k not in others}
    for dotted in (*runtime_keys, *(f"sandbox.{key}" for key in SANDBOX_KEYS)):
        kept = _without(kept, dotted.split("."))
    return kept


def _without(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    left = {key: value for key, value in values.items() if key != path[0] or len(path) > 1}
    if len(path) > 1 and isinstance(left.get(path[0]), Mapping):
        left[path[0]] = _without(left[path[0]], path[1:])
    return left


def _finished(store: ArtifactStore, settings: RunSettings, identity: Identity) -> Artifact | None:
    return store.find(identity.fingerprint) if settings.reuse else None


def _open_tracker(settings: RunSettings, stage: str, work: Path) -> Tracker:
    """Continues the tracker's run of an earlier attempt, whose id lies in the work folder."""
    memory = work / _RUN_ID_FILE
    with disk.checked(memory, "read"):
        earlier = memory.read_text().strip() if memory.exists() else None
    tags = {"vtcli.name": settings.name, "vtcli.seed": str(settings.seed)}
    return settings.tracker(track.Context(settings.home, stage, settings.name, earlier, tags))


def _introduce(run: StageRun, stage: str, config: Mapping[str, Any], parents: Sequence[Artifact]) -> None:
    """Tells the tracker of a run that begins, and keeps the id of the tracker's run for the next attempt."""
    if run.tracker.run_id:
        disk.write_atomic(run.work / _RUN_ID_FILE, run.tracker.run_id.encode())
    run.tracker.params(config)
    if parents:
        run.tracker.inputs([_link(parent) for parent in parents], stage)


def _link(artifact: Artifact) -> dict[str, Any]:
    return {
        "ref": artifact.ref,
        "kind": artifact.kind,
        "digest": artifact.digest,
        "path": str(artifact.path.resolve()),
        "run_id": artifact.manifest.run_id,
    }


def wait_for_commit(run: StageRun, name: str, alive: Callable[[], None], pause_s: float = 0.5) -> Artifact:
    """The other ranks' view of what the first rank commits under ``name``, which has just hashed it. ``alive`` raises
    once the first rank is given up."""
    while True:
        problem: Exception | None = None
        try:
            alive()
        except Exception as error:  # it may have ended because it was done
            problem = error
        made = [a for a in run.store.ls(name) if a.manifest.fingerprint == run.identity.fingerprint]
        if made:
            return made[-1]
        if problem is not None:
            raise problem
        time.sleep(pause_s)
