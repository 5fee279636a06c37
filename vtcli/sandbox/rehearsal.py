"""A few runs in the template, before its first fork.

Python rewrites the bytecode of what it runs often, counts until then, and fills caches, all within the objects. Done
here it is done once: a page that an episode only uses is then as it was again, and can be given back (``unchanged``).
"""

from __future__ import annotations

import builtins
import linecache
import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from vtcli.sandbox import figures, proc, recorder, replies, wire
from vtcli.sandbox.answer import Answer
from vtcli.sandbox.harness import Harness, WorkerSetup
from vtcli.sandbox.types import Status
from vtcli.sandbox.workspace import Workspace

ROUNDS = 16  # Python looks closer at a function after its eighth call
SOURCES = (
    "x = 1",
    "from PIL import Image\ny = image.crop((0, 0, 4, 4)).resize((8, 8), Image.LANCZOS).rotate(90)\ny.show()",
    "size = image.size",
    "1 / 0",
)


def rehearse() -> None:
    """Leaves nothing behind but warm code."""
    pictures = (np.zeros((8, 8, 3), np.uint8),)
    with tempfile.TemporaryDirectory() as workspace, _as_before():
        harness = Harness(WorkerSetup(pictures=pictures, variables={"image": 0}, workspace=workspace))
        harness.prepare()
        for number in range(ROUNDS):
            for source in SOURCES:
                _run(harness, number, source)
            _look_after(workspace)


def _run(harness: Harness, number: int, source: str) -> None:
    """One run with its frames, as guard and worker exchange them."""
    ours, theirs = wire.pair()
    with ours, theirs:
        wire.pass_on(ours, wire.order(number, source.encode()))
        wire.receive(theirs)
        done = harness.execute(source)
        notes, operations = tuple(done.notes), tuple(done.operations)
        theirs.send(replies.encode(replies.Reply(number, done.kind, done.error, done.value, (), 0, operations, notes)))
        harness.get_ready()
        frame = wire.receive(ours, header_bytes=replies.REPLY_BYTES, unpacked=False)
        assert frame is not None
        heard = replies.heard(frame.raw)
        Answer(heard.seq, Status.OK, raw=frame.raw).packed()


def _look_after(folder: str) -> None:
    """What the guard asks of workspace, processes and output around a run."""
    own = Workspace(os.fsencode(folder), 1 << 20, 100)
    own.snapshot()
    own.usage()
    status = proc.Proc().status(os.getpid())
    proc.peak_mb_and_threads(status)
    os.close(status)
    proc.cpu_s(os.getpid())
    fd = os.memfd_create("rehearsal", os.MFD_CLOEXEC)
    proc.readable(fd)
    proc.shortened(fd, 100)
    os.close(fd)


@contextmanager
def _as_before() -> Generator[None]:
    """Takes back what a harness changes in its process."""
    place, main, streams = Path.cwd(), sys.modules.get("__main__"), (sys.stdout, sys.stderr)
    originals = sys.__stdout__, sys.__stderr__
    said, limit, times = builtins.input, sys.setrecursionlimit, os.utime
    try:
        yield
    finally:
        os.chdir(place)
        builtins.input, sys.setrecursionlimit, os.utime = said, limit, times
        (sys.stdout, sys.stderr), (sys.__stdout__, sys.__stderr__) = streams, originals  # pyright: ignore
        if main is not None:
            sys.modules["__main__"] = main
        recorder.activate(None)
        figures.show_with(None)
        linecache.clearcache()
