"""The template: a warm, single-threaded Python with the libraries imported, exec'd with a clean environment. It forks a
guard for each episode and tells the host when one has ended; it never sees what an episode does.

The host speaks to it over one channel: first the configuration, then ``open`` frames with the guard's end of the
episode's channel, and ``kill`` frames. The end of that channel is the end of the template and
of all its guards.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

ENVIRONMENT = {
    # One thread per library: the template must have a single thread when it forks, and a run gets one core.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_OPENCL_RUNTIME": "disabled",
    "MPLBACKEND": "Agg",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "LC_ALL": "C.UTF-8",
    "PATH": "",
    "HOME": "/nonexistent",
    # Arrays lie in the heap, which grows in huge pages: one page fault for 2 MB instead of 512. See ``memory``.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:"
    "glibc.malloc.trim_threshold=131072:glibc.malloc.arena_max=1",
    "PILLOW_BLOCK_SIZE": "16m",
}


def command(channel: int) -> list[str]:
    """How the host starts it, with its end of the channel on descriptor ``channel``. The import path is the host's, so
    that the same libraries are found; nothing else of the host's Python is taken over."""
    package = str(Path(__file__).resolve().parent.parent.parent)
    paths = list(dict.fromkeys([*(p for p in sys.path if p), package]))
    program = f"import sys; sys.path[:] = {paths!r}; from vtcli.sandbox.processes.template import main; main({channel})"
    return [sys.executable, "-P", "-s", "-c", program]  # isolated but for ENVIRONMENT, which is all it gets


def main(channel: int) -> NoReturn:
    """Never returns; ends when the host does."""
    code = 1
    try:
        keep_random()
        code = serve(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, channel))
    finally:
        os._exit(code)


def keep_random() -> None:
    """Imports ``random`` without its wish to be seeded anew in every fork: with transactions a run is a fork of the one
    before, and goes on with the numbers where that one stopped."""
    register = os.register_at_fork
    os.register_at_fork = lambda **_: None
    try:
        import random  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        os.register_at_fork = register


def serve(channel: socket.socket) -> int:
    """Configures, warms up, reports, and forks guards until the channel ends."""
    from vtcli.sandbox.protocol import frames as wire

    frame = wire.receive(channel)
    if frame is None:
        return 0
    try:
        state, unchanged, report = prepare(frame.header)
    except Exception as e:
        from vtcli.sandbox.confinement.kernel import ConfinementError

        config = isinstance(e, ConfinementError)
        text = str(e) if config else f"{type(e).__name__}: {e}"
        wire.send(channel, {"ready": False, "config": config, "error": text[:8000]})
        return 1
    wire.send(channel, {"ready": True, "report": report})
    from vtcli.sandbox.processes.nursery import Nursery

    return Nursery(channel, state, unchanged).serve()


def prepare(config: Any) -> tuple[Any, Any, Any]:
    """Chooses the tier, imports the libraries and enters what all episodes share. An exact ``tier`` is put on without
    probes. Returns the state for the guards, what gives unchanged pages back, and the report."""
    from dataclasses import asdict

    from vtcli.sandbox.confinement import confine
    from vtcli.sandbox.processes import copies, memory

    # Before the imports: the probes fork, and a light process forks faster.
    report = None if config["tier"] else confine.strongest(config["minimum_tier"])
    from vtcli.sandbox.processes.warm import warm

    with memory.hooks_of_libraries():
        warm()
    import vtcli.sandbox.processes.nursery  # noqa: F401  # pyright: ignore[reportUnusedImport]  # warm, before the forks

    state = confine.prepare_template(config["tier"] if report is None else report.tier)
    gc.collect()
    gc.freeze()  # what is there now is never looked at again by a collector, which would copy it in every fork
    with contextlib.suppress(OSError):
        copies.prepare()
    unchanged = memory.settle(state.proc)
    told = {"tier": state.tier, "probed": False} if report is None else {**asdict(report), "probed": True}
    return state, unchanged, told
