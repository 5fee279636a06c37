"""``vtcli doctor``: packages that work, what a GPU does, or if policy and learner agree on a model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vtcli import __version__
from vtcli.cli.artifacts import Home, store_in
from vtcli.cli.console import say
from vtcli.config.machine import gpus, installed
from vtcli.engines.trials.outcome import TrialResult
from vtcli.foreign import print_line
from vtcli.runs.closing import say_next

if TYPE_CHECKING:
    from vtcli.families.family import Family
    from vtcli.report.printing import Table


app = typer.Typer()
COLOURS = {"ok": "green", "slow": "yellow", "absent": "yellow", "broken": "red"}
Line = tuple[str, str, str, str]
"""Topic, state, what was found, what to do."""


@app.command(short_help="Show what is installed and works; try a GPU.", epilog="Example: vtcli doctor --gpu > gpu.md")
def doctor(
    home: Home = Path("artifacts"),
    parity: Annotated[
        str, typer.Option(help="Compare policy and learner on this model: artifact, folder or hub name.")
    ] = "",
    engine: Annotated[str, typer.Option(help="The policy's engine for --parity: hf, vllm or vllm_server.")] = "hf",
    dtype: Annotated[str, typer.Option(help="For --parity: float32 or bfloat16.")] = "float32",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Try GPUs, vLLM and the learner for real; with the model of --parity, if any.")
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="The same trials on the CPU, with the miniature.")] = False,
) -> None:
    """Show which packages, engines and devices work, and how to repair the others.

    Exit code 1: something is broken, or ``--gpu`` was given without a GPU.
    """
    if gpu or cpu:
        lines = list(_trials(_family(home, parity) if parity else None, cpu=cpu))
        _print(f"vtcli {__version__}, trials on {'the CPU' if cpu else 'GPUs'}", lines, wide=True)
        wrong = {"broken"} if cpu else {"broken", "absent"}
    elif parity:
        _parity(_family(home, parity), parity, engine, dtype)
        return say_next("rl", "+recipe=toolsrl", f"model={parity}", f"engine={engine}")
    else:
        from vtcli.cli.findings import examine

        found = examine(home, lambda topic: say(f"trying {topic} …"))
        lines = [(f.topic, str(f.state), f.found, f.advice) for f in found]
        _print(f"vtcli {__version__}", lines)
        wrong = {"broken"}
    if wrong & {state for _, state, _, _ in lines}:
        raise typer.Exit(1)  # the table has what to do
    if gpu:
        say_next("plan", "+recipe=toolsrl")
    else:
        say_next(*(["doctor", "--gpu"] if gpus() and not cpu else ["run", "quickstart"]))


def _trials(family: Family | None, *, cpu: bool) -> Iterator[Line]:
    """Returns the trials' outcomes; prints each as soon as it is known."""

    folder = None if family is None else family.folder
    for outcome in examine(cpu, folder, lambda what: say(f"trying {what} …")):
        say(f"{outcome.state}: {outcome.check}: {outcome.figure}")
        yield outcome.check, outcome.state, outcome.figure, outcome.advice


def page(title: str, lines: Iterable[Line]) -> Table:
    """Returns the lines as one table, each state in its colour."""
    from vtcli.report.printing import Cell, Table

    cells = tuple(
        (
            Cell(topic, head=True),
            Cell(state, words=True, style=COLOURS[state]),
            Cell(found, words=True),
            Cell(advice, words=True),
        )
        for topic, state, found, advice in lines
    )
    return Table(title, "", ("", "state", "found", "what to do"), cells)


def _print(title: str, lines: Iterable[Line], *, wide: bool = False) -> None:
    """Prints the page. ``wide``: through a pipe one line a row, a Markdown table that is kept."""
    from rich.console import Console

    from vtcli.report.printing import WIDEST, page_width, print_all

    print_all([page(title, lines)], Console(), WIDEST if wide else page_width())


def _family(home: Path, model: str) -> Family:
    from vtcli.families.table import in_environment, open_family
    from vtcli.store.models import source_model

    return open_family(source_model(store_in(home), model).path, in_environment())


def _parity(family: Family, model: str, engine: str, dtype: str) -> None:
    """A line of each comparison, and exit code 2 where one fails: template, engines, transformers' forward pass."""
    from vtcli.algo.parity import Dtype
    from vtcli.config.binding import convert
    from vtcli.config.machine import installed
    from vtcli.engines import parity, plain
    from vtcli.engines.policies import Engine
    from vtcli.families.family import PlainForward

    chosen, computed = convert({"name": engine}, Engine, "--engine"), convert(dtype, Dtype, "--dtype")
    if getattr(family, "ids_are_compared", False):
        print_line(
            "ids of prompts and of a conversation, with images, are equal to those of the folder's own processor",
            sys.stdout,
        )
    elif not isinstance(family, PlainForward):
        print_line(
            f"chat template and transformers' forward: left to {family.name}, which opens and loads the folder",
            sys.stdout,
        )
    elif count := plain.template_tokens(family):
        print_line(
            f"ids and the folder's chat template are equal on a prompt of {count} tokens with 2 images", sys.stdout
        )
    else:
        print_line("the folder has no chat template: ids were not compared with one", sys.stdout)
    say(f"comparing policy ({engine}) and learner on {model} in {dtype} …")
    whole = parity.check(family, chosen, computed)
    found = whole.engines
    for a in found:
        own = a.figures
        print_line(
            f"{a.name:<16} {a.length:>5} tokens, {own.tokens:>3} sampled, {a.images} images  "
            f"largest {own.largest:<8.2g} mean KL {own.mean:.2g}",
            sys.stdout,
        )
    parity.require(found, computed)
    if whole.plain is not None:
        plain.require_plain(whole.plain, computed)
        told, rows = whole.plain, "packed rows" if family.packs else "rows one by one"
        print_line(
            f"learner ({rows}) and transformers' forward (each alone) agree in {dtype} on {told.tokens} "
            f"tokens: mean KL {told.mean:.2g}, largest {told.largest:.2g} nats",
            sys.stdout,
        )
    own = parity.pooled(found)
    print_line(
        f"policy ({engine}) and learner agree in {dtype} on {own.tokens} tokens of {len(found)} rows: "
        f"mean KL {own.mean:.2g}, 99th percentile {own.p99:.2g}, largest {own.largest:.2g} nats",
        sys.stdout,
    )
    more = "" if engine != "hf" or not installed("vllm") else "; --engine vllm compares vLLM, too"
    print_line(f"{model} ({family.name}) will train with engine={engine}{more}", sys.stdout)


TRIALS = "vtcli.engines.trials"
"""The module that makes one trial, by its name."""
MODEL_LIMIT_S = 300.0


@dataclass(frozen=True)
class MachineCheck:
    """One trial, by its name in ``vtcli.engines.trials``."""

    name: str
    what: str  # for a line that says why it was not made
    limit_s: float
    on_cpu: bool = True
    model: str = ""  # shared: of policy and learner; step: of the learner step
    package: str = ""  # that must be installed


CHECKS = (
    MachineCheck("driver", "driver and CUDA", 60, on_cpu=False),
    MachineCheck("collectives", "NCCL all-reduce", 240),
    MachineCheck("matmul", "matrix product", 120),
    MachineCheck("attention", "attention against its reference", 180, on_cpu=False),
    MachineCheck("step", "learner step with the layers of a 7B model", 420, model="step"),
    MachineCheck("hf", "engine hf beside the learner", 420, model="shared"),
    MachineCheck("vllm", "vLLM in process: start, sleep, weight update, parity", 900, model="shared", package="vllm"),
    MachineCheck("turns", "vLLM and learner in turns: sleep level 1", 900, model="shared", package="vllm"),
    MachineCheck("ahead", "vLLM async scheduling", 900, on_cpu=False, model="shared", package="vllm"),
    MachineCheck(
        "vllm_server", "vLLM servers: start, sleep, weight update, parity", 900, model="shared", package="vllm"
    ),
    MachineCheck("elsewhere", "vLLM server at engine.urls: weights by each way", 900, model="shared", package="vllm"),
)


def examine(cpu: bool, model: Path | None, starts: Callable[[str], None]) -> Iterator[TrialResult]:
    """Every outcome, as it becomes known. ``model``: in place of a random model that policy and learner share."""
    if not cpu and not gpus():
        for check in CHECKS:
            yield TrialResult(
                check.what, "absent", "no CUDA device", "`vtcli doctor --cpu` tries it with the miniature"
            )
        return
    with tempfile.TemporaryDirectory(prefix="vtcli-doctor-") as above:
        models = {"shared": model, "step": None} if model is not None else {}
        for check in CHECKS:
            if cpu and not check.on_cpu:
                continue
            if check.package and not installed(check.package):
                advice = f"pip install 'vtcli[{check.package}{'-cpu' if cpu else ''}]'"
                yield TrialResult(check.what, "absent", f"{check.package} is not installed", advice)
                continue
            starts(check.what)
            folder = models.get(check.model) or Path(above) / (check.model or "none")
            if check.model and not folder.exists():
                made = _run([f"{TRIALS}.model", str(folder), *_sizes(check.model, cpu)], MODEL_LIMIT_S, cpu)
                if made.problem:
                    yield TrialResult(check.what, "broken", f"its model cannot be made: {made.problem}", made.by_hand)
                    continue
            ran = _run([TRIALS, check.name, str(folder), "cpu" if cpu else "cuda"], check.limit_s, cpu)
            yield from ran.outcomes
            if ran.problem:
                yield TrialResult(check.what, "broken", ran.problem, ran.by_hand)


@dataclass(frozen=True)
class _Ran:
    outcomes: Sequence[TrialResult]
    problem: str  # empty: it ended as it should
    by_hand: str


def _run(module: Sequence[str], limit_s: float, cpu: bool) -> _Ran:
    """A module in a new process group, which is ended with all that it started."""
    environ = {**os.environ, **({"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"} if cpu else {})}
    by_hand = f"by hand: python -m {' '.join(module[:2])} … says more"
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *module],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environ,
            start_new_session=True,
        )
        problem = ""
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            problem = f"no end within {limit_s:.0f} s"
            _kill(process.pid)
            out, _ = process.communicate()
        finally:
            _kill(process.pid)
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if not problem and process.returncode:
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        problem = f"{how}: {said[-1][:300] if said else 'nothing was said'}"
    found = [outcome for line in (out or "").splitlines() if (outcome := TrialResult.read(line)) is not None]
    if not problem and not found and module[0] == TRIALS:
        problem = "ended without a result"
    return _Ran(found, problem, by_hand)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _sizes(model: str, cpu: bool) -> list[str]:
    """Returns family and sizes of a model, as ``vtcli.engines.trials.model`` takes them."""
    from vtcli.config import compose
    from vtcli.engines.trials.model import LIKE_7B, shared

    tiny: Mapping[str, Any] = compose.load("plan", ["scale=tiny"]).values["model"]
    family, own = str(tiny["family"]), dict[str, Any](tiny["architecture"])
    sizes = {**own, **LIKE_7B} if model == "step" and not cpu else shared(family, own, cpu=cpu)
    return [family, json.dumps(sizes)]
