"""How the memory of a template is laid out, so that its forks are cheap.

A fork copies an entry of the page tables for every page that is private to the process, and a description of every
mapping; the end of a process undoes both. A warm Python with its libraries has 35 000 such pages in 1 700 mappings,
and a run touches a thirtieth of them. So, once, before the first fork:

1. the read-only parts of each library become one mapping (``merge_libraries``);
2. all private pages move into one memory file, mapped privately at the same place (``share``). Pages of a file that
   nobody has written are found again when they are touched, so a fork copies nothing of them;
3. from there on the heap grows in huge pages, and arrays lie in it (``heap``; ``GLIBC_TUNABLES`` in ``template``).

With numpy, Pillow, OpenCV, matplotlib, SciPy, SymPy and PyAV loaded, fork and exit took 16.6 ms before and 5.7 ms after
(one run on a busy machine of two cores; ``make bench-sandbox`` shows what is left of it in a whole turn).
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, cast

from vtcli.sandbox.confinement.kernel import LIBC
from vtcli.sandbox.processes import heap
from vtcli.sandbox.processes.memfile import MemoryFile
from vtcli.sandbox.processes.unchanged import ENTRY, Unchanged

READ, WRITE, EXECUTE = 1, 2, 4
BLOCK, PUNCH_HOLE = 64 << 10, 3  # with the flag that keeps the file's size
HOLDING = ctypes.PyDLL(None, use_errno=True)
"""The same for a call that keeps Python's lock."""
HOOKS: list[Callable[[], object]] = []
"""What libraries want done in a forked child."""
OF_THREADS = frozenset({"threading", "logging"})

MOVE = bytes.fromhex(
    "53 55 41 54 41 55 48 89 fb 48 89 f5 49 89 d4 49 89 cd"
    # push rbx, rbp, r12, r13; rbx = entries, rbp = count, r12 = written, r13 = read
    "48 85 ed 74 43"  # loop: if no entry is left, go to the end
    "4c 89 e7 48 8b 33 48 8b 53 08 4c 8b 53 18 b8 12 00 00 00 0f 05"  # pwrite64(written, address, length, offset)
    "48 3b 43 08 75 1f"  # when not all of it could be read, go to the next entry
    "48 8b 3b 48 8b 73 08 48 8b 53 10 41 ba 12 00 00 00 4d 89 e8 4c 8b 4b 18 b8 09 00 00 00 0f 05"
    # mmap(address, length, rights, MAP_PRIVATE | MAP_FIXED, read, offset)
    "48 83 c3 20 48 ff cd eb b8"  # next entry
    "41 5d 41 5c 5d 5b c3"  # end: pop r13, r12, rbp, rbx; return
)
"""``void move(entries, count, written, read)`` for x86-64, both descriptors of one file. Between copying a piece of
memory and mapping the copy in its place nothing may be written there, so no line of Python, whose every step writes to
its heap, can stand between the two."""


@dataclass(frozen=True, slots=True)
class Part:
    """One line of ``/proc/self/maps``."""

    first: int
    last: int
    rights: str
    path: str


def settle(proc: int | None) -> Unchanged | None:
    """Does all of it, as far as the machine allows; what it does not allow is left as it is. The process must have one
    thread, and should do little before its first fork. ``proc``: an open folder /proc that shows this process as
    ``self``; None: the usual one. Returns by what forks can give back pages that they did not change."""
    merge_libraries(proc)
    heap.fill()
    if platform.machine() == "x86_64" and struct.calcsize("P") == 8:
        try:
            unchanged = share(proc)
            heap.begin()
            return unchanged
        except (OSError, ValueError):  # memory that can be written and executed is refused
            pass
    return None


def parts(proc: int | None) -> list[Part]:
    """The mappings of this process, by address."""
    fd = os.open("/proc/self/maps" if proc is None else "self/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    with os.fdopen(fd, errors="replace") as file:
        return [_part(line) for line in file]


def _part(line: str) -> Part:
    span, rights, _, _, _, *path = line.split(maxsplit=5)
    first, last = (int(n, 16) for n in span.split("-"))
    return Part(first, last, rights, path[0].strip() if path else "")


def merge_libraries(proc: int | None) -> None:
    """Gives the parts of each shared library that cannot be written one right, read and execute, and its relocated
    constants the right to be written, like the data behind them: neighbours with the same rights become one mapping.
    The code of a run may map executable memory anyway."""
    for library in _libraries(parts(proc)):
        rights = [p.rights[:3] for p in library]
        code = rights.index("r-x") if "r-x" in rights else len(rights)
        data = rights.index("rw-") if "rw-" in rights else len(rights)
        if data < len(rights) and code < data - 1 and rights[data - 1] == "r--":
            data -= 1
            _protect(library[data], READ | WRITE)
        for part in library[:data]:
            if part.rights.startswith("r--"):
                _protect(part, READ | EXECUTE)


def _libraries(mapped: list[Part]) -> Iterator[list[Part]]:
    """The mappings of each library, which lie one after the other."""
    library: list[Part] = []
    for part in mapped:
        if library and (library[-1].path, library[-1].last) == (part.path, part.first):
            library.append(part)
            continue
        if library and ".so" in library[0].path:
            yield library
        library = [part]


def _protect(part: Part, rights: int) -> None:
    LIBC.mprotect(ctypes.c_void_p(part.first), ctypes.c_size_t(part.last - part.first), rights)


def share(proc: int | None) -> Unchanged:
    """Moves all private memory that can be written, except the stack, into one memory file, which stays open. Raises
    ``OSError``, ``ValueError``."""
    private = [p for p in parts(proc) if p.rights == "rw-p" and (not p.path.startswith("[") or p.path == "[heap]")]
    # Both lie outside what is moved: mappings of Python's `mmap` are shared ones.
    table = mmap.mmap(-1, ENTRY.size * len(private) + 1)
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    offset = 0
    for n, part in enumerate(private):
        length = part.last - part.first
        ENTRY.pack_into(table, n * ENTRY.size, part.first, length, READ | WRITE, offset)
        offset += length
    code[: len(MOVE)] = MOVE
    entries = ctypes.addressof(ctypes.c_char.from_buffer(table))
    file = MemoryFile.create()
    try:
        os.ftruncate(file.written, offset)
        move = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_int)(
            ctypes.addressof(ctypes.c_char.from_buffer(code))
        )
        move(entries, len(private), file.written, file.read)
        _punch(file.written, offset)
        return Unchanged.of(file.finish(), table[: ENTRY.size * len(private)])
    except BaseException:
        file.close()  # what was moved stays mapped, and nobody can reach the file
        raise


def _punch(fd: int, length: int) -> None:
    """Gives back the pages of a file that hold nothing but zeros, such as a heap's reserve that was never touched."""
    zeros = bytes(BLOCK)
    for offset in range(0, length - BLOCK + 1, BLOCK):
        if os.pread(fd, BLOCK, offset) == zeros:
            LIBC.fallocate(fd, PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(BLOCK))


@contextlib.contextmanager
def hooks_of_libraries() -> Generator[None]:
    """What is imported within gets its ``after_in_child`` called by ``fork``: matplotlib closes its fonts there, whose
    place in their files parent and child would share. Those of Python itself stay with ``os.fork``."""
    register = os.register_at_fork

    def take(*, after_in_child: Callable[[], object] | None = None, **others: Callable[[], object]) -> None:
        if after_in_child is not None and getattr(after_in_child, "__module__", "") not in OF_THREADS:
            HOOKS.append(after_in_child)
        elif after_in_child is not None:
            register(after_in_child=after_in_child, **others)

    os.register_at_fork = cast(Any, take)
    try:
        yield
    finally:
        os.register_at_fork = register


def alone() -> bool:
    """Whether no run has left this process a thread."""
    return not _thread._count()  # pyright: ignore[reportPrivateUsage]


def fork(call: Callable[[], int] = HOLDING.fork) -> int:
    """``os.fork`` without what Python does around it: in a process of one thread no lock needs mending, but to look at
    all of them touches, and so copies, some 80 pages in every child. ``call``: forks, with Python's lock held. Raises
    ``OSError``."""
    pid = call() if alone() else os.fork()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if pid == 0:
        for hook in HOOKS:
            hook()
    return pid
