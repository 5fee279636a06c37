"""Retention of the images of a long run: those of the newest steps stay, and those of a sample of trajectories.

Images of a step lie in its folder, ``steps/000012``, and go with it. A step writes its images again even where
an earlier step has them, so the users of a file need no count. Ranks share the folders. No rank is more than a step
ahead of another, because each step gathers rollouts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from vtcli.config.bounds import OutOfBounds
from vtcli.errors import InputError
from vtcli.schema import Group, Trajectory
from vtcli.store import disk, records
from vtcli.store.image_work import submit
from vtcli.store.images import SAMPLED, ImageStore, Sizing, image_file

ALL = "all"
"""The value of ``keep_images`` with which every image stays."""

RECENT = 3
"""Steps that stay after an update. A step reads up to two folders before its own. Its samples were loaded one step
early, and may have been there from the step before that."""


def require_keep_images(value: int | str) -> None:
    """Raises ``OutOfBounds`` for a value that is neither ``all`` nor a number of trajectories."""
    if value != ALL and not (type(value) is int and value >= 0):
        raise OutOfBounds("keep_images", f"must be all, or a number of trajectories of the run, got {value!r}.")


@dataclass(frozen=True, slots=True)
class KeptImages:
    """A line of the log: the images of one trajectory of the sample, by their hashes."""

    trajectory: str
    step: int
    images: tuple[str, ...]


@dataclass
class StepFolders:
    """A run's images in ``work/images``, with ``every``, and otherwise in a folder of each step. ``step`` is the one
    whose images are being made. A run that is resumed may change ``every``: it finds what it wrote before."""

    work: Path
    every: bool
    step: int = 0
    apart: bool = False  # images are those of a validation, in a folder of their own

    def place(self, sha: str) -> Path:
        """The file that an image is written to."""
        if self.apart:
            return image_file(self.held_out, sha)
        return image_file(self.work / "images" if self.every else self._folder(self.step), sha)

    def find(self, sha: str) -> Path:
        """The file of an image, in the newest folder that has it: another rank may be one step ahead."""
        for folder in (self.held_out, self.benchmarks) if self.apart else ():
            if (path := image_file(folder, sha)).exists():
                return path
        for step in range(self.step + 1, self.step - RECENT, -1):
            if (path := image_file(self._folder(step), sha)).exists():
                return path
        return image_file(self.work / "images", sha)

    def stays(self, sha: str) -> bool:
        """Returns True if an image lies in a folder that the step after this one still has."""
        if self.every or self.apart:
            return self.place(sha).exists()
        return any(image_file(self._folder(step), sha).exists() for step in (self.step, self.step - 1))

    def drop(self, done: int, spared: Iterable[int] = ()) -> None:
        """Removes the folders before the newest ``RECENT`` up to ``done``, in a thread; ``spared`` ones stay."""
        stay = set(spared)
        for folder in (self.work / "steps").glob("[0-9]*"):
            if int(folder.name) <= done - RECENT and int(folder.name) not in stay:
                submit(partial(shutil.rmtree, folder, ignore_errors=True))

    @property
    def held_out(self) -> Path:
        """The folder of the images of a validation, which goes with it."""
        return self.work / "held-out"

    @property
    def benchmarks(self) -> Path:
        """The folder of the images of benchmarks' questions, which every validation asks again."""
        return self.work / "benchmarks"

    def _folder(self, step: int) -> Path:
        return self.work / "steps" / f"{step:06d}"


@dataclass
class Retention:
    """The images of one rank's part of a run, which has ``steps`` steps. ``keep`` is ``all``, or the number of
    trajectories of the whole run whose images stay in ``work/images`` and go into the artifact. ``ahead``: checkpoints
    hold rollouts of the next step."""

    work: Path
    keep: int | str
    steps: int
    ahead: bool
    folders: StepFolders = field(init=False)
    _saved: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.folders = StepFolders(self.work, self.keep == ALL)

    def store(self, sizing: Sizing, cache_mb: int) -> ImageStore:
        """The run's images."""
        return ImageStore(self.work / "images", sizing, cache_mb, self.folders)

    def benchmarks(self, sizing: Sizing) -> ImageStore:
        """The images of the questions of benchmarks that validations ask."""
        return ImageStore(self.folders.benchmarks, sizing)

    def log(self, rank: int) -> Path:
        """The log of a rank, which a checkpoint cuts back as it does the others."""
        return self.work / f"images{f'-{rank}' if rank else ''}.jsonl"

    def begin(self, step: int) -> None:
        """From now on images are those of ``step``."""
        self.folders.step = step

    @contextmanager
    def apart(self) -> Generator[None]:
        """Inside the block images are those of a validation. All ranks have done with them when it ends well.

        A sample that a thread loads ahead for training may be stored among them; it is stored again when its step
        comes.
        """
        self.folders.apart = True
        try:
            yield
        finally:
            self.folders.apart = False
        shutil.rmtree(self.folders.held_out, ignore_errors=True)

    def saving(self, steps: int) -> None:
        """A checkpoint after ``steps`` steps is being written."""
        self._saved = (steps,)

    def end(self, step: int, rank: int, everyone: Mapping[int, Group], own: Mapping[int, Group]) -> None:
        """Keeps the images of this rank's part of the step's sample. The first rank removes images that are too old.

        ``everyone`` has the groups of all ranks by their places, ``own`` this rank's.
        """
        if isinstance(self.keep, str):
            return
        # the step's share; the shares of all steps add up to ``keep``, whatever the remainder
        count = self.keep * (step + 1) // self.steps - self.keep * step // self.steps
        mine = [own[place].members[n].trajectory for place, n in chosen(everyone, count, step) if place in own]
        found = [KeptImages(trajectory.id, step, shas(trajectory)) for trajectory in mine]
        for sha in {sha for each in found for sha in each.images}:  # a group's members share the question's image
            link(self.folders.find(sha), image_file(self.work / "images", sha))
        records.append(self.log(rank), found)  # after the links: a logged image is there
        if rank == 0:
            self.folders.drop(step, self._needed())

    def _needed(self) -> set[int]:
        """The steps whose images a resumed run would read: those of rollouts that checkpoints hold, the checkpoint
        being written included."""
        if not self.ahead:
            return set()
        whole = [int(path.name.removeprefix("step-")) for path in (self.work / "checkpoints").glob("step-*")]
        return {step - back for step in (*whole, *self._saved) for back in range(RECENT)}

    def collect(self, target: Path, ranks: int) -> None:
        """Puts the images that the artifact holds into ``target``, and lists there a sample's images."""
        source = self.work / "images"
        source.mkdir(exist_ok=True)
        if self.keep == ALL:
            shutil.copytree(source, target, dirs_exist_ok=True)
            if not (self.work / "steps").exists():
                return  # in every attempt
        logs = [path for rank in range(ranks) if (path := self.log(rank)).exists()]
        kept = [entry for path in logs for entry in records.read(path, KeptImages)]
        with disk.checked(target, "copy images to"):
            for sha in {sha for entry in kept for sha in entry.images}:
                path = image_file(target, sha)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(image_file(source, sha), path)
        disk.write_atomic(target / SAMPLED, json.dumps({"trajectories": [entry.trajectory for entry in kept]}).encode())


def chosen(everyone: Mapping[int, Group], count: int, step: int) -> list[tuple[int, int]]:
    """Place and member of ``count`` trajectories, evenly spread over a step. Each step begins one further.

    Example: 2 of 6 trajectories are the first and the fourth in step 0, the second and the fifth in step 1.
    """
    members = [(place, n) for place, group in everyone.items() for n in range(len(group.members))]
    total = len(members)
    if count >= total:
        return members
    return [members[(i * total // count + step) % total] for i in range(count)]


def shas(trajectory: Trajectory) -> tuple[str, ...]:
    """Hashes of every image of a trajectory, the sample's included, each once."""
    return tuple(dict.fromkeys(sha for ref in trajectory.images for sha in (ref.full, ref.view)))


def link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system has none; nothing if the target exists."""
    if target.exists():
        return
    with disk.checked(target, "keep an image as"):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not source.exists():
            raise InputError(f"The image {source} of this step is gone: something else has removed it.")
        try:
            os.link(source, target)
        except FileExistsError:  # another rank was faster
            return
        except OSError:
            disk.write_atomic(target, source.read_bytes(), durable=False)
