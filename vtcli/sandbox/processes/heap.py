"""Where arrays lie, so that a copy of the process costs nothing for those that are free.

With transactions a process leaves a copy of itself behind before a run. What either of them writes afterwards, the
kernel copies first, page by page, also where nothing but freed arrays lay: 2 megapixels are 2 000 pages, and copying
them took longer than the fork. So the large free pieces of the heap are not copied (``Spared``): the child has zeros
there, which is as good for memory that nobody uses, and the parent goes on with pages that are warm and its own.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence

from vtcli.sandbox.confinement.kernel import LIBC, SUPPORTED

M_TRIM_THRESHOLD = -1
KEPT = 64 << 20
HUGE = 2 << 20
WIPE, KEEP, POPULATE_WRITE = 18, 19, 23  # MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_POPULATE_WRITE
PAGE = 4096
LARGE = 32 * PAGE  # of a piece worth two system calls
MARGIN = 8 * PAGE  # of a free piece, for malloc's own links and for what is allocated until the fork
ROOM = 128 * PAGE  # at the end of a template's heap
LEAST = 32  # a chunk of malloc's
CLAIMED = 16 << 20  # taken back at a time: what runs of ordinary size need
STEPS = 4000  # chunks looked at before a fork, 0.2 us each
IN_USE, FLAGS = 1, 7
WORDS = ctypes.c_size_t * (1 << 40)


Pieces = Sequence[tuple[int, int]]
"""First addresses and lengths, ascending."""


class _Info(ctypes.Structure):
    """``struct mallinfo2``; ``keepcost`` is the size of the chunk at the end."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", *"bcdefghi", "keepcost")]


KNOWN = SUPPORTED and hasattr(LIBC, "mallinfo2")
"""Whether this is the heap of a glibc that is described here; with another one nothing is done."""
if KNOWN:
    LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    LIBC.free.argtypes = [ctypes.c_void_p]
    LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    LIBC.sbrk.restype, LIBC.sbrk.argtypes = ctypes.c_long, [ctypes.c_long]
    LIBC.mallinfo2.restype = _Info


class Place:
    """Where the heap goes on after ``begin``, an address; 0 before. At the last fork: its end, the large pieces that
    were free, and those of them that the fork before had found in use."""

    border = 0
    end = 0
    free: Pieces = ()
    freed: Pieces = ()


def fill() -> None:
    """Takes the heap's large holes for good, and most of its end: arrays in them would lie among the template's pages,
    which a fork shares and a write copies. Later ones go behind the border; what is small still finds a place before
    it, so that not every process needs a huge page."""
    if not KNOWN:
        return
    LIBC.malloc_trim(0)
    end = LIBC.sbrk(0) - LIBC.mallinfo2().keepcost
    size = KEPT
    while size >= LARGE:
        piece = LIBC.malloc(size)
        if piece is None or piece >= end:
            LIBC.free(piece)
            size = size * 7 // 8
    room = LIBC.malloc(ROOM)
    # Nothing may be left at the end: where the C library finds a gap behind it, it counts that as memory it has, and an
    # allocation fails.
    while (rest := LIBC.mallinfo2().keepcost) > PAGE:
        LIBC.malloc(rest - 2 * LEAST)
    LIBC.free(room)


def begin() -> None:
    """Lets the heap go on at a border of a huge page. What comes from there on is for ``free_pieces``. The gap before
    it, even where the heap ended at such a border, keeps a chunk from lying across."""
    if KNOWN:
        LIBC.sbrk(HUGE - LIBC.sbrk(0) % HUGE)
        Place.border = LIBC.sbrk(0)


def free_pieces() -> Pieces:
    """First address and length, whole pages, of the large free pieces of this process's heap behind the border, each
    without its first ``MARGIN`` bytes. Empty when the heap is not as expected: then all of it is copied."""
    border = Place.border
    end = LIBC.sbrk(0) if border else 0
    if end <= border:
        return []
    pieces: list[tuple[int, int]] = []
    for low, high in _free_chunks(WORDS.from_address(border), end - border):
        first, last = -(-(border + low + MARGIN) // PAGE) * PAGE, border + high & -PAGE
        if last - first >= LARGE:
            pieces.append((first, last - first))
    return pieces


def _free_chunks(words: ctypes.Array[ctypes.c_size_t], length: int) -> list[tuple[int, int]]:
    """First and last offset of the large chunks that are not in use. A chunk begins with two words. The second is its
    length, whose lowest bit tells whether the chunk before is in use; if not, the first is the length of that one. The
    last chunk is what is left of the heap."""
    found: list[tuple[int, int]] = []
    before = at = 0
    for _ in range(STEPS):
        word = words[(at >> 3) + 1]
        if not word & IN_USE:
            if at == 0 or words[at >> 3] != at - before:
                return []
            if at - before >= LARGE:
                found.append((before, at))
        before, at = at, at + (word & ~FLAGS)
        if at - before < LEAST or at > length:  # the heap is broken, or somebody else's memory lies in it
            return []
        if at == length:
            found.append((before, length))
            break
    return found


class Spared:
    """What is forked within has zeros in the large free pieces of the heap, and its parent need not copy them when it
    writes there. The process must have one thread. (A class, for a generator is made of more objects.)"""

    __slots__ = ("_collects",)

    def __enter__(self) -> None:
        self._collects = gc.isenabled()
        gc.disable()  # what is finalised now could allocate where the child will have zeros
        pieces = free_pieces()
        Place.freed = used(pieces, Place.free, Place.end)
        Place.free, Place.end = pieces, LIBC.sbrk(0) if pieces else 0
        for first, length in pieces:
            LIBC.madvise(first, length, WIPE)

    def __exit__(self, *_: object) -> None:
        for first, length in Place.free:
            LIBC.madvise(first, length, KEEP)
        if self._collects:
            gc.enable()


def claim() -> None:
    """For the parent, after the fork. What was in use at the fork before and is free now was shared with a copy that is
    no more, or soon: it is taken back in one call, up to ``CLAIMED`` bytes, instead of with a page fault for each page
    that the next array writes to. Kernels before 5.14 do nothing."""
    left = CLAIMED
    for first, length in Place.freed:
        if left > 0:
            LIBC.madvise(first, min(length, left), POPULATE_WRITE)
        left -= length


def used(now: Pieces, before: Pieces, end: int) -> Pieces:
    """What of the pieces ``now`` is in none of those ``before``, below ``end``."""
    found: list[tuple[int, int]] = []
    for first, length in now:
        at, last = first, min(first + length, end)
        for low, size in before:
            if at < low + size and low < last:
                if low > at:
                    found.append((at, low - at))
                at = low + size
        if at < last:
            found.append((at, last - at))
    return found


def keep_freed() -> None:
    """Freed arrays stay in the heap for the next ones."""
    if KNOWN:
        LIBC.mallopt(M_TRIM_THRESHOLD, KEPT)


def give_back() -> None:
    """Gives freed memory back, which ``claim`` must not fetch again."""
    if KNOWN:
        LIBC.malloc_trim(0)
        Place.end = 0
