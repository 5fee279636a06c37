"""The cache of files as a channel between two episodes: how many bits a second, and how many of them wrong.

python tests/bench/bench_sandbox_cache.py

The sender touches one page of a file that every episode may read for each 1, and none for a 0. The receiver, an episode
that is opened afterwards, times a touch of each page, which takes longer from the disk. A page carries
one bit, once, because the receiver's touch leaves it in the cache, and no episode can take it out again. Here the host
does that before each round, with advice that episodes cannot give; so the figures are the most that the channel has.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import time
from pathlib import Path

import numpy as np

from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.types import Picture, Setup, Status

PILOTS = 256  # known bits at the begin, by which the receiver finds its threshold
GONE_S = 15.0  # for the processes of a closed episode to end
SMALL = np.full((64, 64, 3), 90, np.uint8)

FILES = """
import os, sys
found = {}
for folder in sys.path:
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            try:
                found[path] = os.stat(path).st_size
            except OSError:
                pass
print(*(path for _, path in sorted((size, path) for path, size in found.items())[-60:]), sep="\\n")
"""

OPENED = """
import math, mmap, time
with open({path!r}, "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
"""

SENT = """
for number, bit in enumerate(f"{{0x{message}:0{bits}b}}"):
    if bit == "1":
        pages[number * mmap.PAGESIZE]
print("sent")
"""

RECEIVED = """
times = []
clock = time.perf_counter_ns
for place in range(0, {bits} * mmap.PAGESIZE, mmap.PAGESIZE):
    begin = clock()
    pages[place]
    times.append(clock() - begin)
import math
pilots = f"{{0x{pilots}:0{known}b}}"
short, long = (sorted(each for each, bit in zip(times, pilots) if bit == value) for value in "10")
middle = short[len(short) // 2], long[len(long) // 2]
threshold = math.sqrt(middle[0] * middle[1])
print(hex(int("".join("1" if each < threshold else "0" for each in times), 2)), *middle)
"""


def evict(path: Path) -> bool:
    """Takes a file out of the cache; False where some process keeps a part of it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for place in range(0, path.stat().st_size, 1 << 16):
            try:
                os.preadv(file.fileno(), [bytearray(1)], place, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
            return False
    return True


async def _said(pool: Pool, code: str) -> tuple[str, float]:
    """What a new episode prints, and the seconds from its opening to its end."""
    begin = time.perf_counter()
    episode = await pool.open(Setup((Picture(SMALL),), {"image": 0}))
    done = await episode.run(code)
    await episode.close()
    assert done.status is Status.OK, done
    return done.output, time.perf_counter() - begin


async def _round(pool: Pool, path: Path, bits: int, rng: random.Random) -> tuple[float, float, float, str]:
    """Errors as a share, and the seconds of sender and receiver."""
    patience = time.perf_counter() + GONE_S
    while not evict(path):  # the processes of the episode before still have it
        assert time.perf_counter() < patience, f"{path} is in use"
        await asyncio.sleep(0.05)
    pilots, message = rng.getrandbits(PILOTS), rng.getrandbits(bits)
    opened, both = OPENED.format(path=str(path)), pilots << bits | message
    _, sending = await _said(pool, opened + SENT.format(message=f"{both:x}", bits=PILOTS + bits))
    received = RECEIVED.format(bits=PILOTS + bits, pilots=f"{pilots:x}", known=PILOTS)
    text, receiving = await _said(pool, opened + received)
    read, short, long = text.split()
    wrong = (int(read, 16) & (1 << bits) - 1 ^ message).bit_count()
    return wrong / bits, sending, receiving, f"{short} and {long} ns a page"


def capacity(errors: float) -> float:
    """Information of one bit of which a share is wrong, by Shannon."""
    return 1.0 + sum(share * math.log2(share) for share in (errors, 1 - errors) if share)


async def measure(bits: int, rounds: int) -> None:
    """Prints one line for each round and their middle."""
    rng = random.Random(0)
    pool = await Pool.start(PoolConfig())
    try:
        listed, _ = await _said(pool, FILES)
        needed = (bits + PILOTS) * os.sysconf("SC_PAGE_SIZE")
        files = [path for line in listed.splitlines() if (path := Path(line)).is_file()]
        path = next((path for path in files if path.stat().st_size >= needed and evict(path)), None)
        assert path is not None, f"no file of {needed} bytes that no process has open; give fewer --bits"
        print(f"tier {pool.report['tier']}, kernel {os.uname().release}, {path.name}, {bits} bits")
        rates: list[float] = []
        for number in range(rounds):
            errors, sending, receiving, times = await _round(pool, path, bits, rng)
            rates.append(bits * capacity(errors) / (sending + receiving))
            took = f"{sending:.2f} s + {receiving:.2f} s"
            print(f"{number}: {errors:.4f} wrong, {took}, {rates[-1]:.0f} bits/s ({times})")
        print(f"median {sorted(rates)[rounds // 2]:.0f} bits/s")
    finally:
        await pool.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(measure(given.bits, given.rounds))
