"""CPU time, memory and leftovers of a process with all its descendants, and intervals over repeats."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def processes(root: int | None = None) -> dict[int, list[str]]:
    """pid -> the fields of its ``stat`` from the state on, for ``root`` (this process) and all that descend from it."""
    fields: dict[int, list[str]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, waiting = {}, [root or os.getpid()]
    children: dict[int, list[int]] = {}
    for pid, stat in fields.items():
        children.setdefault(int(stat[1]), []).append(pid)
    while waiting:
        pid = waiting.pop()
        if pid in fields:
            found[pid] = fields[pid]
            waiting += children.get(pid, [])
    return found


class CpuClock:
    """CPU time of this process and its descendants, of those that ended if they were waited for. The kernel counts
    descendants in ticks of 10 ms each, so a difference is good to some 10 ms per living process."""

    def __init__(self) -> None:
        self._others = _others_ms()
        self._own = time.process_time()

    def ms(self) -> float:
        """Since the clock was made; looking at it is not counted."""
        own = time.process_time() - self._own
        return own * 1000 + _others_ms() - self._others


class MachineClock:
    """CPU time of the whole machine, in ticks of 10 ms for each core: for when nothing else runs. It counts what
    ``CpuClock`` does not see, such as the end of a copy of a worker, which nobody waits for."""

    def __init__(self) -> None:
        self._start = _busy_ms()

    def ms(self) -> float:
        """Since the clock was made."""
        return _busy_ms() - self._start


def _busy_ms() -> float:
    user, nice, system, _, _, irq, softirq = map(int, (PROC / "stat").read_text().split(maxsplit=9)[1:8])
    return (user + nice + system + irq + softirq) * TICK_MS


def _others_ms() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = (children.ru_utime + children.ru_stime) * 1000
    return ended + sum(sum(map(int, s[11:15])) * TICK_MS for pid, s in processes().items() if pid != os.getpid())


def pss_mb(pids: Sequence[int]) -> float | None:
    """Proportional set size of the processes together, MiB; None where the kernel hides it (non-root)."""
    return _rollup_mb(pids, "Pss")


def private_mb(pids: Sequence[int]) -> float | None:
    """Memory that belongs to these processes alone, MiB; None where the kernel hides it."""
    return _rollup_mb(pids, "Private_(?:Clean|Dirty)")


def _rollup_mb(pids: Sequence[int], lines: str) -> float | None:
    total = 0
    for pid in pids:
        try:
            text = (PROC / str(pid) / "smaps_rollup").read_text()
        except PermissionError:
            return None
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(n) for n in re.findall(rf"^{lines}:\s+(\d+)", text, re.M))
    return total / 1024


def available_mb() -> float:
    """What the whole machine could still give out, MiB: kernel memory is in it, and so are the neighbours."""
    return int(re.search(r"MemAvailable:\s+(\d+)", (PROC / "meminfo").read_text())[1]) / 1024


@dataclass(frozen=True)
class Leftovers:
    """What a leak would show in."""

    processes: int
    descriptors: int  # of this process and of its first descendants, the template among them
    shared_files: int  # below /dev/shm
    temporary: int  # entries of the temporary folder
    mounts: int
    host_mb: float  # memory of this process, resident
    template_mb: float
    sockets: int

    def minus(self, before: Leftovers) -> dict[str, float]:
        return {name: round(getattr(self, name) - getattr(before, name), 1) for name in self.__dataclass_fields__}


def leftovers(template: int, temporary: Path) -> Leftovers:
    return Leftovers(
        processes=len(processes()),
        descriptors=sum(_count(PROC / str(pid) / "fd") for pid in (os.getpid(), template)),
        shared_files=_count(Path("/dev/shm")),
        temporary=_count(temporary),
        mounts=len((PROC / "self/mounts").read_text().splitlines()),
        host_mb=_resident_mb(os.getpid()),
        template_mb=_resident_mb(template),
        sockets=sum(1 for _ in (PROC / "net/unix").open()),
    )


def _count(folder: Path) -> int:
    try:
        return sum(1 for _ in folder.iterdir())
    except (PermissionError, FileNotFoundError):
        return 0


def _resident_mb(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", (PROC / str(pid) / "status").read_text())[1]) / 1024


@dataclass(frozen=True)
class Estimate:
    """A median or ratio over repeats with the 95 % interval of 2 000 bootstrap draws of the repeats."""

    middle: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        return f"{self.middle:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def _draws(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, count, (2000, count))


def _interval(middle: float, drawn: np.ndarray) -> Estimate:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(float(middle), float(low), float(high))


def estimate(values: Sequence[float]) -> Estimate:
    """Median over repeats."""
    array = np.asarray(values, float)
    return _interval(np.median(array), np.median(array[_draws(len(array))], axis=1))


def ratio(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """Of the sums over repeats, drawn in pairs: for CPU times, which are only exact over many blocks."""
    a, b, draws = np.asarray(over, float), np.asarray(under, float), _draws(len(over))
    return _interval(a.sum() / b.sum(), a[draws].sum(axis=1) / b[draws].sum(axis=1))
