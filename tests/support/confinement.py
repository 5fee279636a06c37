"""A confined episode in miniature, for tests: template, guard and worker in a process of its own, and ways to start it
as an ordinary user or inside a container's filter. Trusted tests run it; it is no sandbox by itself."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from vtcli.sandbox.confinement import bpf, confine, namespaces
from vtcli.sandbox.confinement.gate import ForkGate
from vtcli.sandbox.confinement.kernel import PR_SET_NO_NEW_PRIVS, prctl
from vtcli.sandbox.types import RunLimits

USER = 65_534
CONTAINER = (272, 308, 165, 166, 155, *range(428, 433), 442)  # unshare, setns, mount and relatives
NEW_NAMESPACES = {56: 0x7E020000}  # clone, with a flag for a new namespace
CLONE3 = 435
LANDLOCK_CREATE = 444
LIMITS = RunLimits(
    cpu_s=20.0,
    memory_mb=1536,
    threads=24,
    open_files=64,
    output_bytes=2**20,
    file_mb=8,
    workspace_mb=8,
    workspace_files=64,
)


def run(code: str, tier: str, *, libraries: bool = False, gate: bool = True, starter: tuple[str, ...] = ()) -> dict:
    """Runs ``code`` as an episode's worker. Returns its ``result`` (anything that JSON knows), ``error`` (the last line
    of its exception), ``exit`` (its code, negative for a signal), ``pids`` and ``refused`` (by the gate)."""
    order = json.dumps({"code": code, "tier": tier, "libraries": libraries, "gate": gate})
    done = subprocess.run(
        [sys.executable, "-I", __file__, *starter, "episode"],
        input=order.encode(),
        capture_output=True,
        timeout=120,
        check=False,
        env={"MPLCONFIGDIR": tempfile.gettempdir(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout, done.stderr.decode()
    return json.loads(done.stdout)


def script(code: str, *starter: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs trusted code in a fresh interpreter, started as ``starter`` says: ``user``, ``container``,
    ``no-landlock``."""
    command = [sys.executable, "-I", __file__, *starter, "script", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env={})


def can_become_user() -> bool:
    """Whether tests may run as another, ordinary user: root that may mount."""
    return os.geteuid() == 0 and script("", "user").returncode == 0


def main(arguments: list[str]) -> None:
    word, *rest = arguments
    if word == "user":
        become_user()
    elif word in ("container", "no-landlock"):
        if os.geteuid() != 0:
            prctl(PR_SET_NO_NEW_PRIVS, 1)
        denied = CONTAINER + ((LANDLOCK_CREATE,) if word == "no-landlock" else ())
        bpf.load(bpf.denying(denied, NEW_NAMESPACES))
        bpf.load(bpf.denying((CLONE3,), code=errno.ENOSYS))  # so that the C library falls back to clone
    elif word == "script":
        exec(compile(rest[0], "script", "exec"), {"__name__": "__main__"})
        return
    else:
        episode(json.loads(sys.stdin.buffer.read()))
        return
    # Started anew, so that nothing of the former user is left in the process, which the tests look at.
    os.execve(sys.executable, [sys.executable, "-I", __file__, *rest], dict(os.environ))


def become_user() -> None:
    """An ordinary user for whom this interpreter can be reached, also when it lies below a folder of root's."""
    namespaces.unshare(namespaces.NEW_MOUNTS)
    namespaces.mount("", "/", "", namespaces.MS_REC | namespaces.MS_PRIVATE)
    for path in (sys.base_prefix, sys.prefix, __file__, bpf.__file__):
        real = Path(path).resolve()
        for folder, child in zip(reversed(real.parents), [*list(reversed(real.parents))[1:], real], strict=True):
            if not folder.stat().st_mode & stat.S_IXOTH:
                show_one(str(folder), child.name)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)


def show_one(folder: str, name: str) -> None:
    """Replaces a closed folder by an open one with that child only, in this mount namespace."""
    aside = tempfile.mkdtemp()
    bind = namespaces.MS_BIND | namespaces.MS_REC
    namespaces.mount(f"{folder}/{name}", aside, "", bind)
    namespaces.mount("tmpfs", folder, "tmpfs", 0, "mode=0755")
    Path(folder, name).mkdir()
    namespaces.mount(aside, f"{folder}/{name}", "", bind)


def import_libraries() -> None:
    import cv2
    import matplotlib as mpl
    import numpy as np
    import PIL.Image
    import scipy.ndimage
    import sympy

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    PIL.Image.init()
    cv2.setNumThreads(1)
    plt.figure().canvas.draw()
    plt.close("all")
    assert np and scipy.ndimage and sympy


def episode(order: dict) -> None:
    if order["libraries"]:
        import_libraries()
    scratch = tempfile.mkdtemp()
    answer, told = os.pipe()
    template = os.fork()
    if template == 0:
        os.close(answer)
        leave(lambda: serve(order, scratch, told))
    os.close(told)
    with os.fdopen(answer) as reader:
        print(reader.read())
    os.waitpid(template, 0)
    shutil.rmtree(scratch)


def leave(step) -> None:
    try:
        step()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def serve(order: dict, scratch: str, told: int) -> None:
    state = confine.prepare_template(order["tier"], scratch)
    confine.prepare_fork(state)
    guard = os.fork()
    if guard == 0:
        leave(lambda: keep(order, state, told))
    os.waitpid(guard, 0)
    confine.remove_workspace(state, guard)


def keep(order: dict, state: confine.TemplateState, told: int) -> None:
    guard = confine.enter_guard(state, LIMITS)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = os.fork()
    if worker == 0:
        os.close(told)
        ours.close()
        leave(lambda: work(order, guard, theirs))
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    gate = ForkGate(fds[0], guard.proc, LIMITS.threads) if fds else None
    result, status = watch(ours, worker, gate)
    result |= {"exit": os.waitstatus_to_exitcode(status), "pids": [os.getpid(), worker]}
    result["proc"] = guard.proc is not None and os.access("1/status", os.R_OK, dir_fd=guard.proc)
    result |= {"refused": gate.refused if gate else 0, "forks": gate.forks if gate else 0}
    os.write(told, json.dumps(result).encode())


def watch(ours: socket.socket, worker: int, gate: ForkGate | None) -> tuple[dict, int]:
    """The worker's words and its end. A message ``fork N`` asks to let N forks through."""
    result: dict = {"result": None, "error": ""}
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    if gate:
        poll.register(gate.fileno(), select.POLLIN)
    end = time.monotonic() + 90
    while time.monotonic() < end:
        ready = dict(poll.poll(1000))
        if gate and gate.fileno() in ready:
            gate.answer()
            if not ready[gate.fileno()] & select.POLLIN:
                poll.unregister(gate.fileno())
        if ours.fileno() in ready:
            words = ours.recv(2**16)
            if not words:
                break
            if words.startswith(b"fork "):
                assert gate
                gate.allow(worker, int(words[5:]))
                ours.send(b"ok")
            else:
                result |= json.loads(words)
    return result, os.waitpid(worker, 0)[1]


def work(order: dict, guard: confine.GuardState, channel: socket.socket) -> None:
    if guard.proc is not None:
        os.close(guard.proc)

    def deliver(listener: int | None) -> None:
        if listener is None:
            channel.send(b"-")
        else:
            socket.send_fds(channel, [b"+"], [listener])
            os.close(listener)

    confine.lock_worker(guard, LIMITS, order["gate"], deliver)

    def ask_forks(count: int) -> None:
        channel.send(b"fork %d" % count)
        channel.recv(2)

    names: dict = {"__name__": "__main__", "ask_forks": ask_forks, "result": None}
    try:
        exec(compile(order["code"], "code", "exec"), names)
        channel.send(json.dumps({"result": names["result"]}).encode())
    except BaseException as e:
        channel.send(json.dumps({"error": f"{type(e).__name__}: {e}"}).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
