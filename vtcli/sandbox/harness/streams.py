"""``sys.stdout`` and ``sys.stderr`` over the file descriptors 1 and 2, created for every run."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

TAIL = 64 * 1024  # bytes of the output that are kept here, for the names of printed files


class OutputLimit(Exception):
    """Error of a run that prints too much. The message is for the policy."""


class Meter:
    """Counts the bytes printed in one run and keeps the last of them; shared by both streams."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.written = 0
        self.exceeded = False
        self._tail = bytearray()
        self._start: dict[int, int] = {}

    def begin(self) -> None:
        """Starts counting: what the files hold already was not printed by this run."""
        self._start = {fd: size(fd) for fd in (1, 2)}

    def add(self, data: bytes) -> bytes:
        """The part of the data that may be written."""
        data = data[: max(self.limit - self.written, 0)]
        self.written += len(data)
        self._tail += data
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]
        return data

    @property
    def text(self) -> str:
        """The end of what was printed."""
        return self._tail[-TAIL:].decode("utf-8", "replace")

    @property
    def something(self) -> bool:
        """Returns True if anything was printed, also by C code that bypasses the streams."""
        return self.written > 0 or any(size(fd) > start for fd, start in self._start.items())


class _MeteredFile(io.FileIO):
    def __init__(self, fd: int, meter: Meter) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._meter = meter

    def write(self, data: Any, /) -> int:
        data = bytes(data)
        kept = self._meter.add(data)
        if kept:
            super().write(kept)
        if len(kept) < len(data) and not self._meter.exceeded:
            self._meter.exceeded = True  # said once; what comes after it is dropped
            raise OutputLimit(f"more than {self._meter.limit} bytes were printed; print less")
        return len(data)


def size(fd: int) -> int:
    """Bytes in the file behind ``fd``; 0 for a pipe, a terminal or a closed one."""
    try:
        return os.fstat(fd).st_size
    except OSError:
        return 0


def fresh(limit: int) -> Meter:
    """New streams, whatever became of the old ones; lone surrogates are written escaped."""
    meter = Meter(limit)
    sys.stdout = sys.__stdout__ = _stream(1, meter)
    sys.stderr = sys.__stderr__ = _stream(2, meter)
    return meter


def _stream(fd: int, meter: Meter) -> io.TextIOWrapper:
    try:
        raw: Any = io.BufferedWriter(_MeteredFile(fd, meter), 8192)
    except OSError:  # the code closed it
        raw = io.BytesIO()
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", newline="\n", line_buffering=True)


def flush() -> None:
    """Flushes both streams, except a stream that code closed or replaced. Raises ``OutputLimit``."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OutputLimit:
            raise
        except BaseException:  # noqa: S112  # what the code made of its streams
            continue
