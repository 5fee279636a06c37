"""Stored trajectories on disk, with the facts that scoring needs: signals and place in a group."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.errors import InputError
from vtcli.foreign import print_line
from vtcli.schema import Scored, Signals, Trajectory, Verdict
from vtcli.store import disk, records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.manifest import MANIFEST, hash_file

SCORES = "scores.jsonl"
HOLDERS = "a report of `vtcli eval`, a model of `vtcli rl`, or a JSONL file of Trajectory or Scored records"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a trajectory beside its signals. ``version`` is of the weights that sampled its first turn; None for a
    rollout that broke before it."""

    id: str
    sample: str
    task: str
    form: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one stored trajectory by one reward. ``reason`` explains a total of None. ``group`` counts from 0 in
    stored order. ``reward`` names the recipe's phase."""

    trajectory: Facts
    group: int
    reward: str | None
    signals: Signals
    verdict: Verdict | None
    reason: str | None

    @property
    def total(self) -> float | None:
        """The total; None without a verdict, which is not zero."""
        return self.verdict.total if self.verdict else None


@dataclass(frozen=True, slots=True)
class TrajectorySource:
    """An input: its files in order, its artifact if it has one, and the folder of its images. ``digest`` is the
    artifact's, or the sha256 of the files. ``group_size`` is that of the run that wrote it."""

    name: str
    files: tuple[Path, ...]
    images: Path
    digest: str
    artifact: Artifact | None = None
    group_size: int | None = None

    @property
    def parents(self) -> list[Artifact]:
        return [] if self.artifact is None else [self.artifact]

    def origin(self) -> dict[str, Any]:
        """Returns the input's identity for a manifest."""
        files = [path.name for path in self.files]
        return {"name": self.name, "files": files, "digest": self.digest, "group_size": self.group_size}


def find(store: ArtifactStore, given: str) -> TrajectorySource:
    """Finds trajectories by artifact (``NAME:vN``, ``NAME@latest``, its folder), by JSONL file, or by a folder with
    some.

    Raises:
        InputError: nothing is there, it is damaged, or it holds no trajectories.
    """
    path = Path(given)
    home = path.parent if path.is_file() else path  # a file inside an artifact stands for the artifact
    if not path.exists() or (home / MANIFEST).is_file():
        artifact = _resolve(store, given if not path.is_file() else str(home))
        files = (path,) if path.is_file() else trajectory_files(artifact.path, f"{artifact.ref}, a {artifact.kind},")
        return TrajectorySource(
            given, files, artifact.path / "images", artifact.digest, artifact, _group_size(artifact)
        )
    files = (path,) if path.is_file() else trajectory_files(path, f"The folder {given}")
    with disk.checked(path, "read"):
        # A file has no manifest, so its content stands for it in the identity of what is made of it.
        shas = [hash_file(file) for file in files]
    return TrajectorySource(given, files, home / "images", hashlib.sha256("".join(shas).encode()).hexdigest())


def _resolve(store: ArtifactStore, given: str) -> Artifact:
    if not re.search(r"[:@]", given) and not Path(given).exists():
        known = f"Say which version: {given}@latest." if (store.root / given).is_dir() else ""
        raise InputError(
            f"There is nothing to score at {given!r}: it is neither a file, a folder, NAME:vN nor NAME@latest. "
            f"{known or f'`vtcli artifacts ls` lists the artifacts in {store.root}.'} Trajectories are in {HOLDERS}."
        )
    return store.resolve(given)


def trajectory_files(folder: Path, what: str) -> tuple[Path, ...]:
    """Returns the files of an input: only ``scores.jsonl``, or the trajectories of every rank in order."""
    # Alone, because scores lie beside no trajectories: they name the artifact that holds them.
    if (folder / SCORES).is_file():
        return (folder / SCORES,)
    pattern = re.compile(r"trajectories(?:-(\d+))?\.jsonl(\.zst)?")
    matches = ((pattern.fullmatch(path.name), path) for path in folder.iterdir())
    found = {(int(m.group(1) or 0), m.group(2) or ""): path for m, path in matches if m}
    if not found:
        raise InputError(f"{what} holds no trajectories.jsonl. Trajectories are in {HOLDERS}.")
    return tuple(found[key] for key in sorted(found))


def trajectories(store: ArtifactStore, source: TrajectorySource) -> TrajectorySource:
    """Returns the input itself, or the trajectories behind its scores, beside them or in ``store``. Raises
    ``InputError`` if those were not an artifact, or have changed."""
    if source.files[0].name != SCORES:
        return source
    if source.artifact is None or not source.artifact.manifest.parents:
        raise InputError(f"{source.name} holds scores. Give the trajectories that they were made of.")
    parent = source.artifact.manifest.parents[0]
    # The store of the scores comes first, because NAME:vN may be something else in another store.
    beside = source.artifact.path.parent.parent / parent.ref.replace(":", "/")
    found = find(store, str(beside) if beside.is_dir() else parent.ref)
    if found.digest != parent.digest:
        raise InputError(
            f"{source.name} holds scores of {parent.ref}, and the {parent.ref} here is another one (digest "
            f"{found.digest[:12]} instead of {parent.digest[:12]}). Give the trajectories that they were made of."
        )
    return found


def _group_size(artifact: Artifact) -> int | None:
    """Returns the group size that ``rl``, ``eval`` or an earlier scoring recorded."""
    stage, config = artifact.manifest.stage, artifact.manifest.config
    section = config.get("input" if stage == "judge" else stage) or {}
    size = section.get("group_size", section.get("samples_per_question"))  # its name in evaluations of 0.1.0
    return size if isinstance(size, int) else None


def read(source: TrajectorySource) -> Iterator[tuple[Facts, Signals, Trajectory | None]]:
    """Reads the trajectories in stored order, one at a time. Records of an earlier scoring have signals and no
    trajectory. A torn last line is left out and reported on standard error.

    Raises:
        InputError: records of another kind or schema version, a repeated id, or no record at all.
    """
    seen: dict[str, str] = {}
    for path in source.files:
        if records.torn(path):  # its writer was killed in the middle of a line
            print_line(f"vtcli: the last line of {path} is cut off and is left out")
        for number, record in enumerate(records.read(path, Scored, Trajectory, Score), start=1):
            found = _of(record)
            here = f"{path}, record {number}"
            if first := seen.get(found[0].id):
                raise InputError(
                    f"The trajectory id {found[0].id!r} occurs twice: {first}, and {here}. Ids must be unique."
                )
            seen[found[0].id] = here
            yield found
    if not seen:
        raise InputError(f"{source.name} holds no trajectory: {', '.join(map(str, source.files))} has no record.")


def _of(record: Scored | Trajectory | Score) -> tuple[Facts, Signals, Trajectory | None]:
    if isinstance(record, Score):
        return record.trajectory, record.signals, None
    trajectory = record.trajectory if isinstance(record, Scored) else record
    signals = record.signals if isinstance(record, Scored) else Signals({})
    sample, turns = trajectory.sample, trajectory.policy_turns
    version = turns[0].version if turns else None
    return Facts(trajectory.id, sample.id, sample.task, sample.form, version), signals, trajectory


def groups(found: Sequence[Facts], size: int | None) -> list[list[int]]:
    """Returns indices of each group's trajectories: groups by their first member, members in stored order.

    Members share sample, form and policy version: the rollouts of a question under one set of weights. A sample that
    one step drew twice is two groups: with ``size``, a new group begins after so many members.
    """
    # Several epochs ask a question again, with other weights: the version separates their rollouts.
    piles: dict[tuple[str, str, int | None], list[int]] = {}
    for question, run in itertools.groupby(range(len(found)), lambda i: (found[i].sample, found[i].form)):
        members = list(run)
        for index, version in zip(members, _versions([found[i].version for i in members]), strict=True):
            piles.setdefault((*question, version), []).append(index)
    cut = [pile[i : i + (size or len(pile))] for pile in piles.values() for i in range(0, len(pile), size or len(pile))]
    return sorted(cut)


def _versions(run: Sequence[int | None]) -> list[int | None]:
    """Fills gaps in versions: a rollout that broke before its first turn takes the version before it, the first ones
    the next."""
    last = next((version for version in run if version is not None), None)
    return [last := version if version is not None else last for version in run]
