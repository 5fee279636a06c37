"""Checkpoints written beside the training: state is copied to host memory, and a thread writes it.

Each rank writes and syncs its own files. The first one renames the folder when all have, so a checkpoint is complete or
absent. At most one is being written at a time. Models are exported here as well, complete or absent.
"""

from __future__ import annotations

import copy
import errno
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from torch import Tensor

from vtcli.engines.learner.distributed import barrier, gather, rank_alive
from vtcli.errors import InputError
from vtcli.store import disk
from vtcli.store.checkpoints import Checkpoints, Interval

_LITTLE = 16 * 2**20
"""Bytes. Where a file could not be written and less is left, the disk counts as full."""

_WRITERS = ("inline_container", "PytorchStreamWriter", "I/O error", "os error")
"""Words of torch's and safetensors' own errors, which hide the system's message."""


@contextmanager
def storing(folder: Path) -> Generator[None]:
    """Raises every failure to write a file as an ``InputError`` that names the folder."""
    try:
        with disk.checked(folder):
            yield
    except Exception as error:
        if isinstance(error, OSError) or not any(word in str(error) for word in _WRITERS):
            raise
        # Their writers lose the system's errno, so the room that is left has to tell a full disk from a failing one.
        code = errno.ENOSPC if shutil.disk_usage(folder).free < _LITTLE else errno.EIO
        raise disk.io_error(OSError(code, os.strerror(code)), folder, "write") from error


def export(model: Any, source: Path, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Writes weights (null: the model's own) and config as a Hugging Face folder, with tokenizer and processor files of
    ``source``.

    Raises:
        InputError: the disk is full, or does not take the files for another reason.
    """
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder, state_dict=weights)
        for path in sorted(source.iterdir()):
            # The source's weights and its index stay behind: the new weights may be cut into other files.
            wanted = path.suffix in {".json", ".jinja", ".txt", ".model"} and "safetensors" not in path.name
            if wanted and path.name != "manifest.json" and not (folder / path.name).exists():
                (folder / path.name).write_bytes(path.read_bytes())


class Exportable(Protocol):
    """The part of a learner that ``export_complete`` needs."""

    rank: int

    def export(self, source: Path, folder: Path) -> None: ...


def export_complete(learner: Exportable, source: Path, folder: Path) -> None:
    """The model as a Hugging Face folder, complete or absent. All ranks call this together."""
    draft = folder.with_name(folder.name + ".draft")
    if learner.rank == 0:
        # Of an export that was killed; its half would otherwise mix with this one's files.
        shutil.rmtree(draft, ignore_errors=True)
    learner.export(source, draft)
    if learner.rank == 0:
        with disk.checked(folder):
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
    barrier("the export of the model")


EVERY_STEP = Interval(steps=1)


class Snapshots(TorchCheckpointEngine):
    """DeepSpeed's checkpoint engine in two parts: ``save`` copies to host memory, ``taken`` returns a writer."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[tuple[Any, str]] = []

    def save(self, state_dict: Any, path: str) -> None:
        """Copies the state. The training may change it from now on."""
        self._taken.append((to_host(state_dict), path))

    def taken(self) -> Callable[[], list[Path]]:
        """Returns a function that writes what ``save`` has copied since the last call, from any thread, and returns the
        files."""
        found, self._taken = self._taken, []

        def write() -> list[Path]:
            written: list[Path] = []
            while found:  # each copy is freed as soon as it is written
                state, path = found.pop(0)
                torch.save(state, path)
                written.append(Path(path))
            return written

        return write


def to_host(value: Any) -> Any:
    """A deep copy in host memory. Tensors that are views are copied as the values that they show."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    # Exact types: a subclass may have state beside its items, which ``deepcopy`` below keeps.
    if type(value) in (dict, OrderedDict):
        found = cast("dict[Any, Any]", value)
        return type(found)((key, to_host(item)) for key, item in found.items())
    if type(value) in (list, tuple):
        return type(value)(to_host(item) for item in value)
    return copy.deepcopy(value)


class Savable(Protocol):
    """The part of a learner that is needed here."""

    rank: int
    world: int

    def snapshot(self, folder: Path) -> Callable[[], object]: ...


class Saver:
    """Writes the checkpoints of a run. All ranks call its methods together, except ``check``."""

    def __init__(
        self,
        learner: Savable,
        checkpoints: Checkpoints,
        every: Interval = EVERY_STEP,
        *,
        beside: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.checkpoints, self.every = checkpoints, every
        self._learner, self._beside, self._clock = learner, beside, clock
        self._last = clock()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def due(self, steps: int) -> bool:
        """Returns True if a checkpoint is due after so many steps. By time the first rank's clock decides, and a
        checkpoint that is still being written puts the next one off."""
        if self.every.steps is not None:
            return steps % self.every.steps == 0
        # Decided by one rank, because clocks differ and all ranks have to take the same checkpoint.
        late = self._clock() - self._last >= (self.every.seconds or 0.0)
        return bool(gather(late and not self._writing, "the time of a checkpoint")[0])

    @property
    def _writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(self, steps: int, value: float | None = None, also: Callable[[Path], None] | None = None) -> None:
        """Copies the state and starts writing it. Every rank writes its further files through ``also(folder)``.

        Raises:
            InputError: this checkpoint's folder, or the one before, cannot be written.
        """
        self.finish()  # host memory has room for one copy of the states
        rank, points = self._learner.rank, self.checkpoints
        # Before the copy is written: the logs grow meanwhile, and a resume cuts them back to here.
        sizes = _largest(gather(points.sizes(), "the logs of all ranks"))
        if rank == 0:
            points.begin()
        barrier("the folder of the checkpoint")
        write = self._learner.snapshot(points.draft)

        def work() -> None:
            write()
            if also is not None:
                also(points.draft)
            if rank == 0:
                self._await_others(points.draft)
                points.finish(steps, value, sizes)

        self._last = self._clock()
        self._start(work, points.draft / f"rank-{rank}")

    def check(self) -> None:
        """Raises the error that the writing thread met, if any. Every step calls this."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Waits until the checkpoint that is being written is whole, on all ranks.

        Raises:
            InputError: it could not be written.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        everyone = gather(None if self._error is None else str(self._error), "the checkpoint")
        self.check()
        if failed := [f"rank {rank}: {text}" for rank, text in enumerate(everyone) if text is not None]:
            raise InputError("; ".join(failed))

    def _start(self, work: Callable[[], None], marker: Path) -> None:
        def guarded() -> None:
            text = ""
            try:
                work()
            except Exception as error:  # it comes out in ``check`` and ``finish``, in the thread that trains
                self._error, text = error, str(error)
            if self._learner.rank != 0:
                try:
                    disk.write_atomic(marker, text.encode())
                except Exception as error:  # the first rank waits for it in vain
                    self._error = self._error or error

        # No daemon: a process that ends, by an error too, first completes the checkpoint that holds its work.
        self._thread = threading.Thread(target=guarded, name="checkpoint")
        self._thread.start()
        if not self._beside:
            self.finish()

    def _await_others(self, draft: Path) -> None:
        """Waits for the other ranks as long as they live, because their storage may be slow."""
        for rank in range(1, self._learner.world):
            marker, alive = draft / f"rank-{rank}", rank_alive(rank, f"its part of {draft}")
            while not marker.exists():
                alive()
                time.sleep(0.05)
            if text := marker.read_text():
                raise InputError(f"rank {rank}: {text}")


def _largest(everyone: list[Mapping[str, int]]) -> dict[str, int]:
    """The size of each log by the rank that writes it. Others may see an older size on a network file system."""
    return {name: max(sizes.get(name, 0) for sizes in everyone) for sizes in everyone for name in sizes}
