"""Weights on their way to other processes: in buckets of bounded size, one tensor's bytes after the other's.

A bucket lies in anonymous memory that has a path (memfd). Other processes of this host read it in place, and it
disappears when this process ends. Alternatively it is a file in a folder that other hosts see, too.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes; every tensor begins at a multiple of it."""

CHUNK = 2**20
"""Bytes that are sent at a time."""

Entry = tuple[str, str, tuple[int, ...], int]
"""Name, dtype, shape and first byte of a tensor in its bucket."""


@dataclass(frozen=True)
class Bucket:
    """Tensors, and where their bytes are."""

    entries: tuple[Entry, ...]
    size: int  # bytes
    path: str
    file: IO[bytes]

    @property
    def what(self) -> str:
        """Name for messages: the first and the last tensor."""
        first, last = self.entries[0][0], self.entries[-1][0]
        return first if len(self.entries) == 1 else f"{first} … {last} ({len(self.entries)} tensors)"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its bytes, for the network; several may read at a time."""
        for at in range(0, self.size, CHUNK):
            yield os.pread(self.file.fileno(), CHUNK, at)

    def close(self) -> None:
        """Frees it. Who has mapped it keeps what was mapped."""
        self.file.close()  # a named file is removed by this, too


def fill(weights: Iterable[tuple[str, Tensor]], limit: int, folder: Path | None) -> Iterator[Bucket]:
    """Buckets of at most ``limit`` bytes, or of one tensor that has more. Without a ``folder``: in memory."""
    entries: list[Entry] = []
    file: IO[bytes] | None = None
    size = 0
    for name, value in weights:
        raw = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
        if file is not None and size + raw.nbytes > limit:
            yield _closed(entries, size, file)
            file, entries, size = None, [], 0
        file = file or _open(folder)
        entries.append((name, str(value.dtype).removeprefix("torch."), tuple(value.shape), size))
        file.write(raw.data)
        padding = -raw.nbytes % ALIGNMENT
        file.write(bytes(padding))
        size += raw.nbytes + padding
    if file is not None:
        yield _closed(entries, size, file)


def update_info(bucket: Bucket, total: int) -> dict[str, Any]:
    """The message to a vLLM worker about a bucket; ``total`` tensors come in all."""
    return {
        "path": bucket.path,
        "size": bucket.size,
        "entries": [list(entry) for entry in bucket.entries],
        "total": total,
    }


def unpack(path: str, size: int, entries: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bucket that another process filled; they hold its memory, nothing is copied.

    Raises:
        OSError, ValueError: it is not there, or not whole.
    """
    with Path(path).open("rb") as file:
        if (found := os.fstat(file.fileno()).st_size) != size:
            raise ValueError(f"the bucket {path} has {found} bytes, not {size}")
        # Copy on write: torch wants writable memory, and the sender's bytes must not change.
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    for name, dtype, shape, at in entries:
        count = math.prod(shape)
        kind = getattr(torch, dtype)
        flat = torch.frombuffer(memory, dtype=kind, count=count, offset=at) if count else torch.empty(0, dtype=kind)
        yield name, flat.reshape(tuple(shape))


def _open(folder: Path | None) -> IO[bytes]:
    if folder is not None:
        return tempfile.NamedTemporaryFile(dir=folder, prefix="weights-", suffix=".bucket")
    # Not a named file in /dev/shm: that would stay behind when this process is killed.
    return os.fdopen(os.memfd_create("vtcli-weights"), "w+b")


def _closed(entries: list[Entry], size: int, file: IO[bytes]) -> Bucket:
    file.flush()
    path = f"/proc/{os.getpid()}/fd/{file.fileno()}" if isinstance(file.name, int) else str(file.name)
    return Bucket(tuple(entries), size, path, file)
