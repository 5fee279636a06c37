"""What a process leaves behind before a run: a copy that does nothing until it is wanted."""

from __future__ import annotations

import mmap
import os

import pytest
from heap_process import ran
from sandbox_world import World

from vtcli.sandbox.confinement.kernel import SUPPORTED
from vtcli.sandbox.processes.memfile import MemoryFile
from vtcli.sandbox.types import Status

COPY = """
import os, socket, time
from vtcli.sandbox.processes import copies
from vtcli.sandbox.processes import memory
from vtcli.sandbox.protocol import frames as wire
memory.settle(None)
if {prepared}:
    copies.prepare()
    assert copies.Place.forked is not None
ours, theirs = wire.pair()
ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
child = copies.fork(theirs.fileno())
if child == 0:
    frame = wire.receive(theirs)
    os._exit(7 if frame and frame.header == {{"do": "go"}} else 8)
theirs.close()
word = wire.receive(ours, unpacked=False)
assert word.raw == copies.WORD and word.pid == child, word
about = lambda: open(f"/proc/{{child}}/stat").read().rpartition(")")[2].split()
until = time.monotonic() + 30
while about()[0] != "S" and time.monotonic() < until:
    time.sleep(0.001)
assert os.waitpid(child, os.WNOHANG) == (0, 0) and about()[0] == "S", about()
faults = int(about()[7])
{then}
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), faults)
"""


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize(
    ("then", "code"), [('wire.send(ours, {"do": "go"})', 7), ("ours.shutdown(socket.SHUT_RDWR)", 8)]
)
def test_a_copy_waits_for_a_word_or_the_end_and_leaves_the_word_unread(prepared: bool, then: str, code: int) -> None:
    found, _ = ran(COPY.format(prepared=prepared, then=then)).split()
    assert int(found) == code


def test_a_copy_that_waits_has_touched_next_to_nothing() -> None:
    faults = [
        int(ran(COPY.format(prepared=prepared, then="ours.shutdown(socket.SHUT_RDWR)")).split()[1])
        for prepared in (True, False)
    ]
    assert faults[0] < 40 < faults[1], faults


REACH = """
import mmap, os
def size(fd):
    try:
        return os.fstat(fd).st_size
    except OSError:
        return 0
large = [fd for fd in range(3, 256) if size(fd) > 32 << 20]
attempts = (
    lambda fd: os.pwrite(fd, b"x", 0),
    lambda fd: os.ftruncate(fd, 0),
    lambda fd: os.posix_fallocate(fd, 0, 1 << 30),
    lambda fd: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    lambda fd: os.pwrite(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), b"x", 0),
    lambda fd: os.pwrite(os.open(f"/dev/fd/{fd}", os.O_RDWR), b"x", 0),
)
for n, attempt in enumerate(attempts):
    for fd in large:
        try:
            attempt(fd)
        except (OSError, ValueError):
            continue
        print("reached by", n)
print("files", len(large))
"""


def test_code_cannot_change_the_memory_that_all_episodes_read(world: World) -> None:
    """The descriptor of the template's memory file, which a worker keeps to give pages back, is for reading."""
    result = world.runs(REACH)[0]
    assert result.status is Status.OK and "reached" not in result.output, result
    assert SUPPORTED is (result.output != "files 0\n"), result.output


def test_nobody_can_write_to_a_memory_file_that_is_finished() -> None:
    for file in memory_files():
        os.pwrite(file.written, b"template", 0)
        fd = file.finish()
        assert os.pread(fd, 8, 0) == b"template"
        with pytest.raises(OSError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(OSError):
            os.pwrite(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), b"x", 0)
        with pytest.raises(OSError):
            os.ftruncate(fd, 0)
        mapped = mmap.mmap(fd, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        mapped[:1] = b"x"  # the writer's own copy
        assert os.pread(fd, 8, 0) == b"template"
        mapped.close()
        os.close(fd)


def memory_files() -> list[MemoryFile]:
    """Of both kinds, where both can be had; as large as one page."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    files = [MemoryFile.create(), MemoryFile(fd, fd, None)]
    for file in files:
        os.ftruncate(file.written, mmap.PAGESIZE)
    return files


def test_signals_are_as_a_fresh_python_has_them(world: World) -> None:
    source = "import signal\nprint(signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGTERM))"
    assert world.runs(source)[0].output == "0 0\n"
