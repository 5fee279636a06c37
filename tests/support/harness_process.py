"""A harness in a process of its own: its patches of PIL, numpy, OpenCV and matplotlib stay out of the test process."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from vtcli.protocols import Pixels
from vtcli.sandbox.harness.harness import Execution, Harness, WorkerSetup
from vtcli.sandbox.protocol import arena

WAIT_S = 120.0


@dataclass(frozen=True)
class Ran:
    """One run, what it wrote to the descriptors 1 and 2, and what the recorder stumbled over."""

    executed: Execution
    output: str
    troubles: list[str] = field(default_factory=list[str])


def scene(width: int = 320, height: int = 240, seed: int = 0) -> Pixels:
    """Smooth colours with hard edges: every part of it is told from every other."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [127 + 90 * np.sin(x / (9 + 5 * c) + c + seed) * np.cos(y / (13 + 3 * c) + seed) for c in range(3)]
    picture = np.stack(waves, axis=2) + rng.normal(0, 4, (height, width, 3))
    for _ in range(24):
        left, top = int(rng.integers(0, width - 30)), int(rng.integers(0, height - 20))
        picture[top : top + 15, left : left + 25] = rng.integers(0, 255, 3)
    return np.clip(picture, 0, 255).astype(np.uint8)


class Player:
    """Plays runs, one episode a call, in one warm process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __call__(self, *sources: str, **setup: Any) -> list[Ran]:
        self._pipe.send((setup, sources))
        assert self._pipe.poll(WAIT_S), "the harness did not answer"
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise AssertionError(answer)
        return answer

    def one(self, source: str, **setup: Any) -> Ran:
        return self(source, **setup)[0]


@contextmanager
def player() -> Iterator[Player]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Player(ours)
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join(10)


def _serve(pipe: Connection) -> None:
    from vtcli.sandbox.processes.template import warm

    warm()
    with tempfile.TemporaryFile() as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        while True:
            try:
                setup, sources = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send(_play(setup, sources))
            except BaseException as problem:
                pipe.send(f"{type(problem).__name__}: {problem}")


def _play(setup: dict[str, Any], sources: tuple[str, ...]) -> list[Ran]:
    with tempfile.TemporaryDirectory() as workspace:
        for name, data in setup.pop("files", {}).items():
            Path(workspace, name).write_bytes(data)
        pictures = tuple(_as_workers_see(p) for p in setup.pop("pictures", ()))
        harness = Harness(WorkerSetup(workspace=workspace, pictures=pictures, **setup))
        harness.prepare()
        ran: list[Ran] = []
        for source in sources:
            os.ftruncate(1, 0)
            os.lseek(1, 0, os.SEEK_SET)
            executed = harness.execute(source)
            output = os.pread(1, 1 << 26, 0).decode("utf-8", "replace")
            ran.append(Ran(executed, output, list(harness.recorder.troubles)))
        os.chdir("/")
        return ran


def _as_workers_see(picture: Pixels) -> Pixels:
    fd = arena.sealed_picture(picture)
    try:
        return arena.mapped(fd, *picture.shape[:2])
    finally:
        os.close(fd)
