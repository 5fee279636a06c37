"""Inside a throw-away process: an episode of a tier that tries what the tier must stop, and reports what got
through."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import tempfile
from collections.abc import Callable
from typing import cast

from vtcli.sandbox.confinement import confine
from vtcli.sandbox.confinement.attempts import ATTEMPTS, LIMITS, GotThrough, Ground
from vtcli.sandbox.confinement.gate import ForkGate
from vtcli.sandbox.confinement.kernel import LIBC, MACHINE, ConfinementError
from vtcli.sandbox.confinement.probes import LIMITED
from vtcli.sandbox.types import Tier
from vtcli.sandbox.waits import LIFETIME_S

_KEPT = "CAP_DAC_READ_SEARCH stays, for the user that root became cannot reach Python otherwise; Landlock bounds it"
X32_GETPID = 0x40000000 | 39


def main(tier: str) -> None:
    """Writes one line of JSON to standard output: ``{"layers": [[name, what got through or null, by, what was tried],
    …]}`` or ``{"error": reason}``. Run it in a separate process: it ends confined."""
    signal.alarm(LIFETIME_S)  # whatever hangs here ends with its process
    try:
        _episode(cast(Tier, tier))
    except (ConfinementError, OSError) as e:
        _say({"error": str(e)})


def _say(answer: dict[str, object]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _episode(tier: Tier) -> None:
    with tempfile.TemporaryDirectory(prefix="sandbox-probe-") as outside:
        os.chmod(outside, 0o777)  # noqa: S103, PTH101 - so that only confinement keeps the canary
        canary, scratch = f"{outside}/canary", f"{outside}/scratch"
        os.close(os.open(canary, os.O_WRONLY | os.O_CREAT, 0o600))
        os.chmod(canary, 0o666)  # noqa: S103, PTH101
        os.mkdir(scratch)  # noqa: PTH102
        child = os.fork()
        if child == 0:
            _leave(lambda: _template(tier, canary, scratch))
        os.waitpid(child, 0)


def _leave(step: Callable[[], None]) -> None:
    """Takes the step and ends the process; what was refused is the answer."""
    try:
        signal.alarm(LIFETIME_S)
        step()
    except BaseException as e:
        _say({"error": str(e) or type(e).__name__})
    finally:
        os._exit(0)


def _template(tier: Tier, canary: str, scratch: str) -> None:
    host = os.getppid()
    state = confine.prepare_template(tier, scratch)
    confine.prepare_fork(state)
    guard = os.fork()
    if guard == 0:
        _leave(lambda: _guard(state, canary, host))
    os.waitpid(guard, 0)


def _guard(state: confine.TemplateState, canary: str, host: int) -> None:
    guard = confine.enter_guard(state, LIMITS)
    ground = Ground(canary, host, os.getpid())
    foreign = _foreign_call(guard)
    reader, writer = os.pipe()
    worker, gate = _start(guard, lambda: _try_all(state.tier, ground, writer))
    os.close(writer)
    _serve(worker, gate)
    with os.fdopen(reader, "rb") as answer:
        layers = json.loads(answer.read())
    if state.tier != "none" and MACHINE == "x86_64":  # a 64-bit process of aarch64 can call no other
        layers.append(["foreign_abi", foreign, "seccomp", "a system call of the x32 ABI"])
    if state.tier == "full":
        hidden = "refused, as parts of the host's /proc are hidden: what an episode uses cannot be watched"
        layers.append(["own_proc", hidden if guard.proc is None else None, "pid namespace", "/proc of the episode"])
    if guard.template.kept:
        layers.append(["capabilities", _KEPT, "", "capabilities that are left to the worker"])
    layers.append(["memory_total", "not limited, for no cgroup is used", "", "memory of all episodes together"])
    _say({"layers": layers})


def _start(guard: confine.GuardState, step: Callable[[], None]) -> tuple[int, ForkGate | None]:
    """A locked worker that takes the step; its id, and its gate."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = os.fork()
    if worker == 0:
        _leave(lambda: _work(guard, theirs, step))
    theirs.close()
    _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    gate = ForkGate(listeners[0], guard.proc, LIMITS.threads) if listeners else None
    return worker, gate


def _work(guard: confine.GuardState, channel: socket.socket, step: Callable[[], None]) -> None:
    if guard.proc is not None:
        os.close(guard.proc)

    def deliver(listener: int | None) -> None:
        if listener is None:
            channel.send(b"-")
        else:
            socket.send_fds(channel, [b"+"], [listener])
            os.close(listener)

    confine.lock_worker(guard, LIMITS, True, deliver)
    channel.close()
    step()


def _serve(worker: int, gate: ForkGate | None) -> int:
    """Answers the gate until the worker has ended; its exit code."""
    ended = os.pidfd_open(worker)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    if gate is not None:
        poll.register(gate.fileno(), select.POLLIN)
    while not any(fd == ended for fd, _ in poll.poll()):
        if gate is not None:
            gate.answer()
    os.close(ended)
    if gate is not None:
        gate.close()
    return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])


def _try_all(tier: Tier, ground: Ground, writer: int) -> None:
    found: list[list[str | None]] = []
    for name, (attempt, at_full, elsewhere) in ATTEMPTS.items():
        tried = attempt.__doc__ or name
        leak: str | None = None
        if tier == "none" and name not in LIMITED:
            leak = "not tried at tier none"
        else:
            try:
                attempt(ground)
            except (GotThrough, OSError) as e:
                leak = str(e)
        found.append([name, leak, at_full if tier == "full" else elsewhere, tried])
    os.write(writer, json.dumps(found).encode())


def _foreign_call(guard: confine.GuardState) -> str | None:
    """Outcome of a system call with x32 numbers, in a separate worker, because it must not survive it."""
    if guard.template.tier == "none" or MACHINE != "x86_64":
        return None
    worker, gate = _start(guard, lambda: LIBC.syscall(X32_GETPID))
    code = _serve(worker, gate)
    return None if code == -signal.SIGSYS else f"the process lived on (exit code {code})"
