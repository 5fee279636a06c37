"""What the template does before its first fork leaves warm code, and nothing else."""

from __future__ import annotations

from heap_process import ran

REHEARSED = """
import os, signal, sys
from pathlib import Path
from vtcli.sandbox.harness import patches
from vtcli.sandbox.processes import rehearsal
patches.install()
def world():
    return (
        sorted(os.listdir("/proc/self/fd")), os.readlink("/proc/self/fd/1"), os.getcwd(), os.umask(0o022),
        signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGCHLD), sys.stdout, os.utime,
        Path(f"/proc/self/task/{os.getpid()}/children").read_text(), len(os.listdir("/proc/self/task")),
    )
os.umask(0o027)
before = world()
os.umask(0o027)
rehearsal.rehearse()
assert world() == before, (world(), before)
import dis
from vtcli.sandbox.processes import copies
from vtcli.sandbox.confinement import gate
from vtcli.sandbox.processes import guard
from vtcli.sandbox.harness import harness
from vtcli.sandbox.protocol import replies
from vtcli.sandbox.processes import watch
from vtcli.sandbox.processes import worker
def warm(function):
    plain = {i.opname for i in dis.get_instructions(function)}
    return bool({i.opname for i in dis.get_instructions(function, adaptive=True)} - plain)
assert not warm(worker.work)  # never called here
for function in (
    worker.Worker.leave_copy, worker.Worker.reply, harness.Harness._run, replies.encode,
    guard.Orders.read, guard.Guard.run, guard.Guard.answer, watch.Watch._supervise, gate.ForkGate.answer,
):
    assert warm(function), function
print("warm")
"""


def test_a_rehearsal_leaves_nothing_behind_but_warm_code() -> None:
    assert ran(REHEARSED) == "warm\n"
