"""Rows a second of exact and near duplicates and of contamination, and the memory that they take.

    PYTHONPATH=. python tests/bench/bench_near.py 10000 100000 1000000

Rows have random hashes of 256 bits and one question, which is the slowest case: all rows are compared by image alone.
A tenth of the rows are copies of earlier ones with up to 16 other bits. Each size runs in a process of its own.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from vtcli.filters import contamination, duplicates
from vtcli.filters.facts import Reference, RowFacts

HELD_OUT = 10_000  # images of benchmarks, of which eight turns each are searched


def made(count: int) -> tuple[list[RowFacts], dict[str, bytes], int]:
    """Rows, hashes, and the number of copies."""
    draw = random.Random(0)
    rows, hashes, copies = list[RowFacts](), dict[str, bytes](), 0
    for n in range(count):
        value = draw.randbytes(32)
        if n and draw.random() < 0.1:
            copies += 1
            number = int.from_bytes(hashes[rows[draw.randrange(n)].media[0]])
            for place in draw.sample(range(256), draw.randint(0, 16)):
                number ^= 1 << place
            value = number.to_bytes(32)
        sha = draw.randbytes(32).hex()
        hashes[sha] = value
        media, content = (sha,), draw.randbytes(32).hex()
        rows.append(
            RowFacts("answer-train", n, f"row-{n:08}", "answer", "How many?", "3", ((640, 480),), media, content)
        )
    return rows, hashes, copies


def timed(name: str, count: int, rule: Callable[[], Sequence[object]]) -> None:
    start = time.process_time()
    dropped = sum(reason is not None for reason in rule())
    took = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| {name} | {count:,} | {dropped:,} | {took:.1f} | {count / took:,.0f} | {peak:,.0f} |", flush=True)


def measure(count: int) -> None:
    rows, hashes, copies = made(count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| (rows alone) | {count:,} | {copies:,} made | | | {peak:,.0f} |", flush=True)
    timed("exact", count, lambda: duplicates.exact(rows))
    timed("near", count, lambda: duplicates.near(rows, image_hashes=hashes))
    draw = random.Random(1)
    held = {
        ("held", str(n)): Reference("held", str(n), "Why?", (tuple(draw.randbytes(32) for _ in range(8)),))
        for n in range(HELD_OUT)
    }
    timed("contamination", count, lambda: contamination.against(rows, image_hashes=hashes, references=held))


def main() -> None:
    if len(sys.argv) == 2:
        measure(int(sys.argv[1]))
        return
    print("| rule | rows | dropped | CPU s | rows/s | peak MiB |")
    print("|---|--:|--:|--:|--:|--:|", flush=True)
    for count in sys.argv[1:] or ("10000", "100000", "1000000"):
        subprocess.run([sys.executable, __file__, count], check=True)


if __name__ == "__main__":
    main()
