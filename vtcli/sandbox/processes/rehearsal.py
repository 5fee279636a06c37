"""A few runs in the template, before its first fork.

Python rewrites the bytecode of what it runs often, counts until then, and fills caches, all within the objects; what it
has rewritten needs less of them: no names, no descriptors. Done here it is done once and for all: no episode lives long
enough to get there, and each object that it uses is a page that it copies.

The template plays both parts: a worker that finds its orders in its channel, and a guard, the host's orders in its
hand, whose worker is a fork.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import linecache
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from vtcli.sandbox.confinement import confine
from vtcli.sandbox.confinement.kernel import (
    LIBC,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    SUPPORTED,
    parent_death_signal,
    prctl,
)
from vtcli.sandbox.harness import figures
from vtcli.sandbox.harness.harness import WorkerSetup
from vtcli.sandbox.processes import copies, worker
from vtcli.sandbox.processes.guard import Guard, Orders
from vtcli.sandbox.processes.watch import Broken
from vtcli.sandbox.protocol import arena
from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.provenance import recorder
from vtcli.schema import Json

ROUNDS = 16  # Python looks closer at a function after its eighth call
RUNS = 12  # of the guard, each with a fork of a process that is not light yet
SOURCES = (
    "x = 1",
    "from PIL import Image\ny = image.crop((0, 0, 4, 4)).resize((8, 8), Image.LANCZOS).rotate(90)\ny.show()",
    "from PIL import Image\nresult = image.crop((0, 0, 4, 4)).resize((8, 8), Image.LANCZOS)",
    "size = image.size",
    "1 / 0",
)


def rehearse() -> None:
    """Leaves nothing behind but warm code."""
    with tempfile.TemporaryDirectory() as workspace, _as_before():
        _as_worker(_setup(workspace))
        if SUPPORTED:
            _as_guard(_setup(workspace))


def _setup(workspace: str) -> WorkerSetup:
    pictures = (np.zeros((8, 8, 3), np.uint8),)
    wanted = ("show", "pil_show", "result")
    return WorkerSetup(pictures=pictures, variables={"image": 0}, workspace=workspace, capture=wanted)


def _as_worker(setup: WorkerSetup) -> None:
    """All orders lie before it when it begins. The forks that leave copies are left out."""
    ours, theirs = wire.pair()
    left, right = wire.pair()
    control, room, output = theirs.detach(), arena.create(), arena.printed()
    with ours, left, right, _without_forks():
        for number in range(ROUNDS):
            for source in SOURCES:
                wire.pass_on(ours, wire.order(number, source.encode()), [right.fileno()])
            wire.send(ours, {"do": "rest", "after": number})
        ours.shutdown(socket.SHUT_WR)
        played = worker.Worker(setup, worker.Slots(-1, control, room, output, os.dup(output)), None)
        played.gated = True
        played.prepare()
        played.serve()
        played.control.close()
        arena.unshared(played.arena)
    os.close(room)
    os.close(output)


@contextmanager
def _without_forks() -> Generator[None]:
    fork, copies.fork = copies.fork, lambda channel: 1
    try:
        yield
    finally:
        copies.fork = fork


def _as_guard(setup: WorkerSetup) -> None:
    """With transactions, where the machine allows a gate; what it does not allow is found out later, and told."""
    host, theirs = wire.pair()
    state = confine.TemplateState("landlock", os.geteuid(), (), 0, setup.workspace, 0, None, None)
    orders = _orders(setup)
    death = parent_death_signal()
    with host, theirs:
        played = Guard(theirs, confine.GuardState(state, setup.workspace, None), None, orders)
        prctl(PR_SET_PDEATHSIG, death)
        prctl(PR_SET_CHILD_SUBREAPER, 0)
        try:
            with contextlib.suppress(Broken):
                _serve(host, played)
        finally:
            played.end()
            _close(played)


def _serve(host: socket.socket, played: Guard) -> None:
    """Raises ``Broken`` when the worker does not start."""
    played.spawn()
    for number in range(RUNS):
        wire.pass_on(host, wire.order(number, SOURCES[number % len(SOURCES)].encode()))
        frame = played.next_order()
        assert frame is not None
        played.run(number, frame.raw)
        wire.receive(host, unpacked=False)
    played.bury()


def _orders(setup: WorkerSetup) -> Orders:
    header: dict[str, Json] = {
        **{"pictures": [list(p.shape[:2]) for p in setup.pictures], "variables": dict(setup.variables)},
        **{"image_files": {}, "videos": [], "prelude": "", "before_each": "", "capture": list(setup.capture)},
        **{"persist": True, "transactions": True, "limits": asdict(setup.limits), "help": asdict(setup.help)},
    }
    picture = arena.sealed_picture(setup.pictures[0])
    for _ in range(ROUNDS):
        orders = Orders.read(wire.Frame(header, (), (os.dup(picture),)))
        orders.worker(setup.workspace)
        LIBC.munmap(ctypes.c_void_p(orders.pictures[0][0]), ctypes.c_size_t(setup.pictures[0].nbytes))
    return Orders.read(wire.Frame(header, (), (picture,)))


def _close(played: Guard) -> None:
    """What a guard leaves to the end of its process."""
    for fd in (played.arena, played.output):
        os.close(fd)
    if played.head is not None:
        played.head.end()
    if played.gate is not None:
        played.gate.close()


@contextmanager
def _as_before() -> Generator[None]:
    """Takes back what guard and worker change in their process."""
    place, main, streams = Path.cwd(), sys.modules.get("__main__"), (sys.stdout, sys.stderr)
    originals = sys.__stdout__, sys.__stderr__
    said, limit, times = builtins.input, sys.setrecursionlimit, os.utime
    umask, signals = os.umask(0o022), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    outputs = [os.dup(1), os.dup(2)]
    try:
        yield
    finally:
        os.chdir(place)
        os.umask(umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        LIBC.signal(int(signal.SIGCHLD), None)  # SIG_DFL
        for number, fd in zip((1, 2), outputs, strict=True):
            os.dup2(fd, number)
            os.close(fd)
        builtins.input, sys.setrecursionlimit, os.utime = said, limit, times
        (sys.stdout, sys.stderr), (sys.__stdout__, sys.__stderr__) = streams, originals  # pyright: ignore
        if main is not None:
            sys.modules["__main__"] = main
        recorder.activate(None)
        figures.show_with(None)
        linecache.clearcache()
