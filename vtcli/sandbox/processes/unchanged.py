"""Giving back pages that are as the template left them.

Python counts references within objects, so whatever a process only uses is written to, and copied, page by page. When
the counts are back where they were, so is the page, and there are two equal ones. A quarter of an idle episode's memory
was of that kind. ``Unchanged.give_back`` finds them by comparing with the template's memory file (``memory.share``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from dataclasses import dataclass

from vtcli.sandbox.confinement.kernel import LIBC, PR_SET_DUMPABLE

SIG_BLOCK, SIG_SETMASK, PR_GET_DUMPABLE = 0, 2, 3
ALL_SIGNALS = b"\xff" * 128  # a ``sigset_t``; those that cannot be held back are not
ENTRY = struct.Struct("=4Q")  # address, length, rights, offset in the file
PAGE = struct.Struct("=2Q")  # address, offset in the file
MOST = 4096  # pages given back at a time

PRIVATE = bytes.fromhex(
    "53 55 41 54 41 55 41 56 41 57 48 89 fb 48 89 f5 41 89 d4 49 89 cd 4d 89 c6"
    # push rbx, rbp, r12 to r15; rbx = entries, rbp = count, r12 = pagemap, r13 = buffer, r14 = found; r9 is the room
    "48 85 ed 0f 84 a0 00 00 00 45 31 ff"  # entry: if none is left, go to the end; r15 = 0, the offset in the entry
    "4c 8b 43 08 4d 29 f8 0f 86 84 00 00 00"  # chunk: r8 = length - r15; if nothing is left, go to the next entry
    "49 c1 e8 0c 49 81 f8 00 02 00 00 76 06 41 b8 00 02 00 00"  # r8 = pages, 512 at most
    "44 89 e7 4c 89 ee 4a 8d 14 c5 00 00 00 00 4c 8b 13 4d 01 fa 49 c1 ea 09 b8 11 00 00 00 0f 05"
    # pread64(pagemap, buffer, 8 * r8, (address + r15) / 4096 * 8)
    "48 39 d0 75 59 31 c9"  # if not all of it could be read, go to the end; rcx = 0, the page
    "4c 39 c1 74 3a"  # page: if rcx = r8, go to the next chunk
    "49 8b 44 cd 00 48 c1 e8 3d 83 f8 04 75 27"  # if it is not in memory, or a file's, go to the next page
    "4d 85 c9 74 3f"  # if there is no room, go to the end
    "48 89 c8 48 c1 e0 0c 4c 01 f8 48 8b 13 48 01 c2 49 89 16"  # its address goes to what was found,
    "48 03 43 18 49 89 46 08 49 83 c6 10 49 ff c9"  # and its offset in the file; one less fits there
    "48 ff c1 eb c1"  # next page
    "49 c1 e0 0c 4d 01 c7 e9 6f ff ff ff"  # next chunk: r15 = r15 + r8 * 4096
    "48 83 c3 20 48 ff cd e9 57 ff ff ff"  # next entry
    "4c 89 f0 41 5f 41 5e 41 5d 41 5c 5d 5b c3"  # end: return where found ends; pop r15 to r12, rbp, rbx
)
"""``void *private(entries, count, pagemap, buffer, found, room)`` for x86-64: what a loop in Python would do, if it did
not touch more memory than can be given back."""

GIVE_BACK = bytes.fromhex(
    "53 55 41 54 41 55 48 89 fb 48 89 f5 41 89 d4 49 89 cd"
    # push rbx, rbp, r12, r13; rbx = pages, rbp = count, r12 = file, r13 = buffer
    "48 85 ed 74 66"  # loop: if no page is left, go to the end
    "44 89 e7 4c 89 ee ba 00 10 00 00 4c 8b 53 08 b8 11 00 00 00 0f 05"  # pread64(file, buffer, 4096, offset)
    "48 39 d0 75 42"  # if not all of it could be read, go to the next page
    "4c 89 ee 48 8b 3b b9 00 02 00 00 f3 48 a7 75 32"  # if the page is not equal to the buffer, go to the next one
    "48 8b 3b be 00 10 00 00 ba 04 00 00 00 b8 1c 00 00 00 0f 05"  # madvise(address, 4096, MADV_DONTNEED)
    "4c 89 ee 48 8b 3b b9 00 02 00 00 f3 48 a7 74 0e"  # if it still is, as the file's, go to the next page
    "4c 89 ee 48 8b 3b b9 00 02 00 00 f3 48 a5"  # else, for it was of something else, copy the buffer there
    "48 83 c3 10 48 ff cd eb 95"  # next page
    "41 5d 41 5c 5d 5b c3"  # end: pop r13, r12, rbp, rbx; return
)
"""``void give_back(pages, count, file, buffer)`` for x86-64. Between comparing a page and giving it back nothing may be
written to it, so no line of Python, which counts references wherever it goes, can stand between them."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The template's memory file, and where its parts are mapped, as ``ENTRY``. The rest are addresses of this
    process's own memory."""

    file: int
    entries: bytes
    look: int
    code: int
    buffer: int
    found: int

    @classmethod
    def of(cls, file: int, entries: bytes) -> Unchanged:
        """In the template, after it was moved. Raises ``OSError``."""
        look = loaded(PRIVATE + GIVE_BACK)
        code = look + len(PRIVATE)
        return cls(file, entries, look, code, mapped(mmap.PAGESIZE), mapped(MOST * PAGE.size))

    def private(self, pagemap: int) -> bytes:
        """The pages, as ``PAGE``, ``MOST`` at most, that a fork of the template has for itself where the file is
        mapped. ``pagemap``: its file of that name; empty when it cannot be read."""
        count = len(self.entries) // ENTRY.size
        end = _LOOK(self.look)(self.entries, count, pagemap, self.buffer, self.found, MOST)
        return ctypes.string_at(self.found, end - self.found)

    def give_back(self, pages: bytes, file: int) -> None:
        """For a process with one thread. ``pages``: of ``private``, and nothing was mapped or unmapped since. ``file``:
        where this process has the memory file."""
        before = ctypes.create_string_buffer(len(ALL_SIGNALS))
        LIBC.sigprocmask(SIG_BLOCK, ALL_SIGNALS, before)
        _CALL(self.code)(pages, len(pages) // PAGE.size, file, self.buffer)
        LIBC.sigprocmask(SIG_SETMASK, before, None)


LIBC.mmap.restype = ctypes.c_void_p
_LOOK = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_long,
)
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_void_p)


def loaded(code: bytes) -> int:
    """The address of machine code, one page at most, that can be read and run from now on. Raises ``OSError``."""
    address = mapped(mmap.PAGESIZE)
    ctypes.memmove(address, code, len(code))
    if LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
    return address


def mapped(length: int) -> int:
    """The address of fresh private memory. Raises ``OSError``."""
    rights, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = LIBC.mmap(None, ctypes.c_size_t(length), rights, kind, -1, ctypes.c_long(0))
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return int(address)


def opened(proc: int | None, *names: str) -> tuple[int, ...]:
    """Descriptors for reading of files in the calling process's own folder below ``proc``, an open folder /proc (None:
    the usual one); none when one of them cannot be had. For a moment the process is one that its user may look into."""
    dumpable = int(LIBC.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1)
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    found: list[int] = []
    try:
        for name in names:
            path = f"/proc/self/{name}" if proc is None else f"self/{name}"
            found.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc))
    except OSError:
        for fd in found:
            os.close(fd)
        return ()
    finally:
        LIBC.prctl(PR_SET_DUMPABLE, dumpable, 0, 0, 0)
    return tuple(found)
