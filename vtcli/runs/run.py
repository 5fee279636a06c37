"""One run of a stage: its request, its work folder, and the commit of its result as an artifact.

A killed stage finds its work folder again when the same command runs. The folder's name is the digest of the stage, its
config and its parents' contents. Work that began with other files or other code is never continued.
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
"""Sections of the configuration that belong to one stage; ``binding.SECTION_OF`` has the exception, judge."""

RUNTIME_KEYS = ("home", "reuse", "memory", "make_missing", "shipped", "tracker", "hydra", "needs", "plan", "launch")
"""Top-level keys that set where and how a stage runs and do not change its result."""

REPEATED_KEYS = ("scale", "model", "agent")
"""Top-level keys that a stage reads through its own section, so that counting them here would count them twice."""

MEMORY_KEYS = ("batch_tokens", "offload", "activation_checkpointing", "sleep", "entropy")
"""Keys of a learner's ``backend`` that set where and in which portions it computes, and its extra measurements. Results
agree up to rounding."""

SANDBOX_KEYS = ("active", "live", "minimum_tier", "outer_boundary", "tier", "start_timeout_s")
"""Keys of ``sandbox`` that change the confinement of code and not its results."""

HASHES = "hashes.json"  # in .work: remembered digests of files outside the store
FEW_KEYS = 3
"""An interrupted run that differs in more keys than this is not mentioned at the start of another."""

_IDENTITY_FILE = "identity.json"
_KEYS_FILE = "keys.json"  # in a work folder: the configuration that counts for the identity
_RUN_ID_FILE = "mlflow_run_id"
_NO_WORK = {_IDENTITY_FILE, _KEYS_FILE, _RUN_ID_FILE, "images"}
"""Names that a work folder has before the first result. A run that refuses its input leaves no others."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings that every stage gets besides its own config."""

    name: str  # of the artifact
    home: Path
    seed: int
    reuse: bool = True
    tracker: Callable[[track.Context], Tracker] = track.null

    @classmethod
    def of(cls, job: Mapping[str, Any], default_name: str) -> RunSettings:
        """Reads a composed configuration's keys name, home, seed, reuse, and tracker (a ``_target_`` node).

        Raises:
            KeyProblem: an invalid name, home or seed.
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
    """Returns a maker of all trackers in section ``tracker``: nodes by name, and the user's own without a name."""
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
    """An open run. ``work`` survives kill -9 and is removed after ``commit``. ``reused`` is the finished artifact of an
    identical run, if one exists, and then nothing is left to do. ``made`` are the artifacts that this run committed.

    In ranks other than the first, ``tracker`` drops everything and ``commit`` raises.
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
        """Makes ``folder``, which must lie in ``work``, the artifact's next version, and tags the tracker's run."""
        if not self._draft:
            raise InputError("Only the first rank of an unfinished run can commit an artifact.")
        if self.work.resolve() not in folder.resolve().parents:
            raise InputError(f"{folder} cannot become an artifact: it must be a folder inside {self.work}.")
        # Inputs are hashed at the start, so a file that changed meanwhile would be recorded under its old digest.
        self._require_unchanged_inputs()
        artifact = Draft(self.store, path=folder, **self._draft).commit(summary or {})
        self.made.append(artifact)
        self.tracker.tags({"vtcli.artifact": artifact.ref, "vtcli.digest": artifact.digest})
        return artifact

    def _require_unchanged_inputs(self) -> None:
        now = replace(self.identity, files={**self.identity.files, **digests(self.inputs, self.work.parent / HASHES)})
        if changed := self.identity.changes(now):
            raise InputError(
                f"{listed(changed)} changed while it was read, so old and new content would mix. No artifact is "
                "made. Give the same command again when the files stay as they are."
            )


@dataclass(frozen=True, slots=True)
class Scope:
    """The parts of a run's identity besides its configuration, and the configuration keys that do not count for it."""

    runtime_keys: Sequence[str] = ()  # dotted keys that do not change the result, say "synth.workers"
    inputs: Mapping[str, Path | FileGroup] = field(
        default_factory=dict[str, Path | FileGroup]
    )  # files outside of artifacts that the run reads
    when_changed: Literal["refuse", "anew"] = "refuse"  # an interrupted attempt's work if inputs or code changed since:
    # refuse the run, or drop the work
    several: bool = False  # several processes may run the same request, each in a separate work folder
    lineage: Sequence[Artifact] = ()  # parents that do not change the result, such as a validation's data


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
    """Opens the work folder of exactly this run, its lock and its tracker, and closes them however the block ends.

    The manifest records all of ``config``. ``RUNTIME_KEYS``, other stages' sections and ``scope.runtime_keys`` do not
    count for the identity; the content of ``scope.inputs`` and the source of plug points do.

    Raises ``InputError`` when another process runs the same, or when ``home`` cannot be written. A requeued Slurm job
    waits for the lock of its earlier attempt.
    """
    store, scope = ArtifactStore(settings.home), scope or Scope()
    request = fingerprint(stage, kind, settings, config, parents, runtime_keys=scope.runtime_keys)
    counted = _counted(stage, config, scope.runtime_keys)
    work = settings.home / ".work" / f"{stage}-{request[:12]}"
    # Other ranks take no lock: the first rank holds it for all of them.
    if not first_rank():
        identity = identify(request, counted, scope.inputs, work.parent / HASHES)
        yield StageRun(store, work, track.NullTracker(), identity, _finished(store, settings, identity))
        return
    with _locked(work, f"the work folder of {stage} {settings.name}", scope.several) as work:
        # Under the lock, because another process may have committed the same artifact while this one waited.
        identity = identify(request, counted, scope.inputs, work.parent / HASHES)
        done = _finished(store, settings, identity)
        if done:
            _log.warning("%s was made by this very command; reuse=false makes it again.", done.ref)
            shutil.rmtree(work, ignore_errors=True)  # left by a run that was killed after its commit
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
        # Not Exception: an interrupted run must end in the tracker too, or it would show as running for ever.
        except (KeyboardInterrupt, SystemExit):
            status = "KILLED"
            raise
        finally:
            tracker.close(status)
        # An error keeps the work folder, because the same command continues from it.
        if run.made:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(work: Path, what: str, several: bool) -> Generator[Path]:
    """Yields the work folder for this process alone. With ``several`` it is the first free one of NAME, NAME-2, …, so
    that a later attempt finds the folder that a killed process left."""
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
    """Returns False for an empty file or a folder of empty files, which a run that failed early leaves behind."""
    return any(each.is_file() and each.stat().st_size for each in (path, *path.rglob("*")))


def _begin(work: Path, identity: Identity, when_changed: Literal["refuse", "anew"]) -> None:
    """Makes the work folder with the identity of its content. A change of our own source does not discard work,
    because an interrupted run should continue with a fixed version."""
    memory = work / _IDENTITY_FILE
    if memory.exists():
        with disk.checked(memory, "read"):
            earlier = Identity.read(json.loads(memory.read_text()))
        # ``changes`` leaves our own package out.
        if changed := earlier.changes(identity):
            done = any(path.name not in _NO_WORK and _has_content(path) for path in work.iterdir())
            if done and when_changed == "refuse":
                raise InputError(
                    f"{listed(changed)} changed since an earlier attempt of this run was interrupted; its work would "
                    f"mix with the new. Put back the old to continue, or remove {work} and repeat the command."
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
    """Warns at the start of a run if an interrupted one differs from it in a few keys, as ``zero_stage``, because a
    changed key silently starts over. Names the newest of several that had begun to work."""
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
    """Returns a file's time of change, or 0 if it has just been removed."""
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
    """Returns the sha256 over a run's request: stage, kind, name, seed, config and the parents' contents."""
    kept = _counted(stage, config, runtime_keys)
    value = [stage, kind, settings.name, settings.seed, kept, [parent.digest for parent in parents]]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _counted(stage: str, config: Mapping[str, Any], runtime_keys: Sequence[str]) -> dict[str, Any]:
    """Returns the keys of a configuration that change the result. ``data`` lists generators, which only synth reads."""
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
    """Opens the tracker, and continues an earlier attempt's run, whose id the work folder has."""
    memory = work / _RUN_ID_FILE
    with disk.checked(memory, "read"):
        earlier = memory.read_text().strip() if memory.exists() else None
    tags = {"vtcli.name": settings.name, "vtcli.seed": str(settings.seed)}
    return settings.tracker(track.Context(settings.home, stage, settings.name, earlier, tags))


def _introduce(run: StageRun, stage: str, config: Mapping[str, Any], parents: Sequence[Artifact]) -> None:
    """Sends the tracker the run's configuration and parents, and stores its run id for the next attempt."""
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
    """Waits in another rank for the artifact that the first rank commits under ``name``, and returns it. ``alive``
    raises once the first rank is given up."""
    while True:
        problem: Exception | None = None
        # A look at the store after alive() failed, because the first rank ends normally right after its commit.
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
