"""Weights to disk, and what is said when the disk does not take them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from vtcli.engines.learner.distributed import barrier
from vtcli.store import disk

_LITTLE = 16 * 2**20
"""Bytes. Where a file could not be written and less is left, the disk counts as full."""

_WRITERS = ("inline_container", "PytorchStreamWriter", "I/O error", "os error")
"""Words of torch's and safetensors' own errors, which hide what the system said."""


@contextmanager
def storing(folder: Path) -> Generator[None]:
    """Turns whatever means that a file could not be written into an ``InputError`` that names the folder."""
    try:
        with disk.checked(folder):
            yield
    except Exception as error:
        if isinstance(error, OSError) or not any(word in str(error) for word in _WRITERS):
            raise
        code = errno.ENOSPC if shutil.disk_usage(folder).free < _LITTLE else errno.EIO
        raise disk.io_error(OSError(code, os.strerror(code)), folder, "write") from error


def export(model: Any, source: Path, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write weights (null: the model's own) and config as a Hugging Face folder, with the tokenizer and processor files
    of ``source``.

    Raises:
        InputError: the disk is full, or does not take the files for another reason.
    """
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder, state_dict=weights)
        for path in sorted(source.iterdir()):
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
        shutil.rmtree(draft, ignore_errors=True)
    learner.export(source, draft)
    if learner.rank == 0:
        with disk.checked(folder):
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
    barrier("the export of the model")
