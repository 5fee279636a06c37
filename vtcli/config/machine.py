"""The hardware and packages of this machine, and the check that a scale can run on it. Imports nothing heavy."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vtcli.errors import ConfigError, EngineError


@dataclass(frozen=True)
class CudaDevice:
    """One CUDA device as nvidia-smi names it."""

    name: str
    memory_gib: float


@dataclass(frozen=True)
class Needs:
    """The needs of a scale on each machine, from the ``needs`` section of ``conf/scale/<scale>.yaml``."""

    gpus: int = 0  # `vtcli plan` decides whether their memory is enough
    packages: tuple[str, ...] = ()  # importable modules


@functools.cache
def gpus() -> tuple[CudaDevice, ...]:
    """Returns the CUDA devices that a run would see: nvidia-smi's list, narrowed by ``CUDA_VISIBLE_DEVICES``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found: list[CudaDevice] = []
    for line in listed.splitlines():
        name, _, memory = line.rpartition(",")
        if name and memory.strip().isdigit():
            found.append(CudaDevice(name.strip(), round(int(memory) / 1024, 1)))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found)
    # CUDA ignores the entries from the first -1 on.
    wanted = list(itertools.takewhile(lambda v: v != "-1", (v.strip() for v in visible.split(",") if v.strip())))
    if wanted and not all(v.isdigit() for v in wanted):  # UUIDs or MIG slices: only their number is known
        return tuple(found[: len(wanted)])
    return tuple(found[int(v)] for v in wanted if int(v) < len(found))


@functools.cache
def compute_capability() -> float | None:
    """Returns the lowest compute capability of the machine's GPUs, or None if nvidia-smi does not report it."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        return min(map(float, listed), default=None)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


DRIVERS = {13: 580, 12: 525}
"""The oldest driver for each major version of CUDA (NVIDIA's table of minor-version compatibility)."""


def driver() -> str | None:
    """Returns the version of NVIDIA's driver, or None if nvidia-smi does not report it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return listed[0] if listed and listed[0].partition(".")[0].isdigit() else None


def older_driver(version: str, cuda: str) -> str | None:
    """Returns advice about a driver that is too old for libraries of this version of CUDA, else None."""
    found, wanted = (int(text.partition(".")[0]) for text in (version, cuda))
    needed = DRIVERS.get(wanted, max(DRIVERS.values()))
    if found >= needed:
        return None
    update = f"CUDA {cuda} needs driver {needed} or newer: update it"
    if found < DRIVERS[12]:
        return f"{update}; wheels for CUDA 12 (constraints-cu12.txt) need {DRIVERS[12]}"
    return f"{update}, or in a new environment pip install -c constraints-cu12.txt 'vtcli[vllm]' (docs/gpu.md)"


def gpus_of_machine(environ: Mapping[str, str] = os.environ) -> int:
    """Returns the number of GPUs that the run has on this machine. A rank under ``srun --gpus-per-task=1`` sees only
    its own, so the ranks here are counted."""
    return max(len(gpus()), int(environ.get("LOCAL_WORLD_SIZE") or 1)) if gpus() else 0


def memory_gib(root: Path = Path("/")) -> float:
    """Returns the memory of this machine, or the lowest limit of this process's control groups (v1 or v2), in GiB.

    ``root`` has ``proc`` and ``sys``. A Slurm job or a container has a separate group.
    """
    # From the system and not from a library, because this runs before every command.
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    groups = root / "sys" / "fs" / "cgroup"
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found = {groups / "memory.max", groups / "memory" / "memory.limit_in_bytes"}  # paths inside a container
    for line in lines:
        _, controllers, place = line.split(":", 2)  # v2: 0::/a/b; v1: 4:memory:/a/b
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
        # A group is limited by each group above it, too.
        inner = top / place.lstrip("/")
        found |= {folder / name for folder in (inner, *inner.parents) if folder.is_relative_to(top)}
    for limit in found:
        try:
            text = limit.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text) / 2**30)
    return total


def possible_scales() -> list[str]:
    """Returns the scales for which this machine has enough GPUs, the largest first."""
    found = len(gpus())
    # Eight GPUs are a node of the papers; below that, adapters (small) are what may still fit.
    return ["tiny"] if not found else ["node", "gpu", "small"] if found >= 8 else ["gpu", "small"]


def choose_scale() -> tuple[str, str]:
    """Returns the scale of ``scale=auto`` by the number of GPUs, and a sentence with the reason."""
    devices, chosen = gpus(), possible_scales()[0]
    if not devices:
        larger = "scale=small|gpu|node|paper are larger"
        return chosen, f"scale=auto: no accelerator found, so scale=tiny (a miniature model; {larger})"
    return chosen, f"scale=auto: {devices_here()} found, so scale={chosen}"


def devices_here() -> str:
    """Returns the GPUs in words: ``2 × NVIDIA L40S``."""
    return f"{len(gpus())} × {', '.join(sorted({d.name for d in gpus()}))}"


def require(
    scale: str, model: str | None, scales: Mapping[str, Needs], *, unused: Collection[str] = (), gpus: int | None = None
) -> None:
    """Refuses a scale that this machine cannot run, before anything is loaded. ``unused``: packages of the scale that
    this run does not need. ``gpus``: the most GPUs that it uses; None: all that the scale names.

    Raises:
        EngineError: lists everything that is missing and the largest scale that would run here.
    """
    if gpus is not None:
        scales = {name: replace(needs, gpus=min(gpus, needs.gpus)) for name, needs in scales.items()}
    needs = scales.get(scale)
    if needs is None:
        raise ConfigError(f"scale={scale}: expected one of {', '.join(scales)}.")
    missing = lacking(needs, unused)
    if not missing:
        return
    # The last is the largest, because ``scales`` is in ascending order.
    runs = [name for name, other in scales.items() if not lacking(other, unused)]
    what = f" with model {model}" if model else ""
    hint = f"What would run here: scale={runs[-1]}." if runs else "No scale runs here: see `vtcli doctor`."
    raise EngineError(
        f"scale={scale}{what} cannot run on this machine:\n"
        + "\n".join(f"  - {line}" for line in missing)
        + f"\n{hint} `vtcli doctor` lists the installed packages."
    )


def lacking(needs: Needs, unused: Collection[str] = ()) -> list[str]:
    """Returns the unmet needs, a line each, without ``unused`` packages."""
    here, missing = gpus_of_machine(), list[str]()
    if needs.gpus > here:
        wanted = f"{needs.gpus} CUDA device{'s' if needs.gpus > 1 else ''}"
        found = f"{here or 'no'} CUDA device{'s' if here > 1 else ''}"
        missing.append(f"{found} found; it needs {wanted} on each machine")
    missing += [_package_advice(p) for p in needs.packages if p not in unused and not installed(p)]
    return missing


def installed(module: str) -> bool:
    """Returns True if ``module`` could be imported; imports nothing."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _package_advice(module: str) -> str:
    if module.startswith("vtcli."):
        return f"this version of vtcli has no {module}"
    extra = " (pip install 'vtcli[vllm]')" if module == "vllm" else f" (pip install {module})"
    return f"{module} is not installed{extra}"
