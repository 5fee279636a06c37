"""The command line: a command per stage, and artifacts, config, sandbox, doctor. Imports nothing heavy too early."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from vtcli import __version__
from vtcli.cli import artifacts as cli_artifacts
from vtcli.cli import sandbox as cli_sandbox
from vtcli.cli.artifacts import Home
from vtcli.errors import ConfigError, VtcliError

if TYPE_CHECKING:
    from vtcli.config.compose import Job

USER_ERROR, INTERRUPTED, TERMINATED = 2, 130, 143
STAGES = ("synth", "filter", "sft", "rl", "eval", "judge", "serve")
ON_ACCELERATOR = ("sft", "rl", "eval", "serve")
"""Stages that load a model, so that a scale too large for the machine is refused before they start."""
IN_RANKS = ("sft", "rl")
SAME_REQUEST_S = 2.0

HYDRA_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
OVERRIDES = """Arguments are Hydra's: +recipe=NAME, scale=tiny|gpu|node|paper|auto, key=value, +key=value, ~key,
--multirun, --cfg job, --resolve. `vtcli config show {stage}` prints the result and where each value came from."""

app = typer.Typer(
    help="Train vision-language models to think with images: synth → filter → sft → rl → eval → judge.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes longer to import than --help may take
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Show or check configurations without running them.", no_args_is_help=True)
app.add_typer(cli_artifacts.app, name="artifacts")
app.add_typer(config_app, name="config")
app.add_typer(cli_sandbox.app, name="sandbox")


def main() -> None:
    """Entry point. A mistake of the user ends with exit code 2 and one message, an interrupt with 130, SIGTERM (Slurm's
    time limit or preemption) with 143."""
    signal.signal(signal.SIGTERM, _terminate)  # else Python ends at once, and the tracker's run stays open
    try:
        app()
    except VtcliError as error:
        _fail(str(error))
    except OSError as error:
        reason = _disk_problem(error)
        if reason is None:
            _unexpected(error)
        _fail(reason)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            how = "interrupted" if end.code == INTERRUPTED else "terminated"
            _say(f"{how}; the same command continues where it stopped.")
        raise
    except Exception as error:
        _unexpected(error)


def _terminate(number: int, frame: object) -> NoReturn:
    """A second one ends at once, unless it comes at once: Slurm tells the processes of a step, and so does its srun."""
    del number, frame
    first = time.monotonic()

    def again(number: int, frame: object) -> None:
        del frame
        if time.monotonic() - first > SAME_REQUEST_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, again)
    raise SystemExit(TERMINATED)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Train vision-language models to think with images: synth → filter → sft → rl → eval → judge."""
    if version:
        typer.echo(f"vtcli {__version__}")
        raise typer.Exit


def _add_stage(name: str, summary: str) -> None:
    def command(ctx: typer.Context) -> None:
        run_stage(name, ctx.args)

    command.__doc__ = f"{summary}\n\n{OVERRIDES.format(stage=name)}"
    app.command(name, context_settings=HYDRA_ARGUMENTS)(command)


_add_stage("synth", "Make a dataset: charts, pages and scenes with exact ground truth.")
_add_stage("filter", "Keep the rows that rules want, and say why the others went.")
_add_stage("sft", "Train on demonstrations: syntax and basic perception.")
_add_stage("rl", "Train by reinforcement with tools, phase by phase.")
_add_stage("eval", "Measure a model on held-out samples and write a report.")
_add_stage(
    "judge",
    """Score stored trajectories under a recipe: vtcli judge TRAJECTORIES +recipe=RECIPE

    TRAJECTORIES is a report of eval or a model of rl (NAME:vN, NAME@latest, a folder), or a JSONL file of records.
    --all-recipes makes the reward matrix: recipes x trajectories, rank correlations, where recipes disagree most.
    `vtcli judge agreement A B` compares two judgements of the same trajectories.""",
)
_add_stage("serve", "Serve a model as an agent: an OpenAI-compatible endpoint at http://127.0.0.1:8000/v1.")


def run_stage(stage: str, argv: list[str]) -> None:
    """Compose and check everything that ``argv`` asks for, then run it through Hydra."""
    from vtcli.config import compose, machine
    from vtcli.runs import slurm

    slurm.adopt_ranks()
    plan = compose.plan(stage, argv)
    if plan.note and os.environ.get("RANK", "0") == "0":
        _say(plan.note)
    for job in compose.jobs(plan):
        if plan.only_prints:
            continue
        if stage in ON_ACCELERATOR:
            machine.require(str(job.values["scale"]), _model_of(job), compose.scales())
        compose.build(_stage_parts(stage)[0], job)
    compose.run(plan, work)


def work(values: dict[str, Any]) -> str:
    """One job of a stage, here or in a launcher's process: build its config, run it, print and return what it made."""
    from vtcli.config import compose
    from vtcli.runs import slurm

    stage = str(values["stage"])
    slurm.adopt_ranks()
    if stage not in IN_RANKS:
        slurm.require_one_process(stage)
    config_class, run = _stage_parts(stage)
    artifact = run(compose.build(config_class, compose.Job(stage, values, {})))
    if artifact is None:  # serve: nothing was made
        return ""
    if os.environ.get("RANK", "0") == "0":
        typer.echo(f"{artifact.ref}\t{artifact.path}")
    return str(artifact.ref)


def _stage_parts(stage: str) -> tuple[type[Any], Callable[[Any], Any]]:
    """The config dataclass and ``run`` of ``stages/<stage>.py``."""
    module = importlib.import_module(f"stages.{stage}")
    config_class = getattr(module, "Config", None) or getattr(module, f"{stage.capitalize()}Config")
    return config_class, module.run


def _model_of(job: Job) -> str | None:
    own = job.values.get(job.stage) or {}
    named = own.get("model") or (job.values.get("model") or {}).get("path")
    return None if named in (None, "???") else str(named)


# -- config --------------------------------------------------------------------------------------------------------


@config_app.command("show", context_settings=HYDRA_ARGUMENTS)
def config_show(ctx: typer.Context, stage: str) -> None:
    """Print the composed configuration of STAGE, key by key, and where each value was set."""
    from vtcli.config import compose

    _known_stage(stage)
    plan = compose.plan(stage, ctx.args)
    if plan.note:
        _say(plan.note)
    for job in compose.jobs(plan):
        for key, value in compose.flat(job.values).items():
            shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}…"
            typer.echo(f"{key:<36} {shown:<60} {job.origins[key]}")


@config_app.command("validate")
def config_validate(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE]...")] = None,
    config_dir: Annotated[Path | None, typer.Option(help="A folder of own recipes, laid out as conf/.")] = None,
) -> None:
    """Compose the recipes, by default all, and their variants at every scale for every stage; bind every plug point."""
    from vtcli.config import compose

    problems: list[str] = []
    count, own = 0, compose.own_folder(config_dir)
    for recipe in names or compose.options("recipe", own):
        for scale in compose.options("scale"):
            for choices in ((recipe, scale, variant) for variant in compose.variants(recipe, own)):
                bound, failed = _validate_one(choices, own)
                problems += failed
                count += len(STAGES)
                said = "+recipe={} scale={} variant={}".format(*choices).removesuffix(" variant=paper")
                typer.echo(f"{'wrong' if failed else 'ok':<6} {said}  {bound} plug points bound")
    if problems:
        raise ConfigError("\n".join([f"{len(problems)} of {count} configurations cannot work:", *problems]))
    typer.echo(f"{count} configurations compose and bind.")


def _validate_one(choices: tuple[str, str, str], folder: Path | None) -> tuple[int, list[str]]:
    """Number of plug points of one recipe, scale and variant, and what is wrong with it, a line each."""
    from vtcli.config import compose
    from vtcli.config.binding import SECTION_OF

    recipe, scale, variant = choices
    where = ["--config-dir", str(folder)] if folder else []
    try:
        composed = compose.load(STAGES[0], [f"+recipe={recipe}", f"scale={scale}", f"variant={variant}", *where])
        bound = compose.check_plug_points(composed)
    except VtcliError as error:
        return 0, [f"+recipe={recipe} scale={scale} variant={variant}: {error}"]
    problems: list[str] = []
    for stage in STAGES:
        section = SECTION_OF.get(stage, stage)
        own = composed.values.get(section) or {}
        inputs = {k: "given-by-the-user:v1" for k in compose.INPUTS if own.get(k) == compose.MISSING}
        rewards = composed.values["rl"]["phases"] if stage == "judge" else None
        if compose.MISSING in compose.flat({**own, **inputs, "": rewards}).values():
            continue  # the recipe has nothing to say about this stage, which says so when it is started
        values = {**composed.values, "stage": stage, section: {**own, **inputs}}
        try:
            compose.build(_stage_parts(stage)[0], compose.Job(stage, values, composed.origins))
        except VtcliError as error:
            problems.append(f"vtcli {stage} +recipe={recipe} scale={scale} variant={variant}: {error}")
    return bound, problems


def _known_stage(stage: str) -> None:
    from vtcli.config.binding import nearest

    if stage not in STAGES:
        raise ConfigError(f"there is no stage {stage!r}.{nearest(stage, STAGES)}")


# -- doctor --------------------------------------------------------------------------------------------------------


@app.command()
def doctor(
    home: Home = Path("artifacts"),
    parity: Annotated[
        str, typer.Option(help="Only compare policy and learner on this model: artifact, folder or hub name.")
    ] = "",
    engine: Annotated[str, typer.Option(help="The policy's engine for --parity: hf, vllm or vllm_server.")] = "hf",
    dtype: Annotated[str, typer.Option(help="For --parity: float32 or bfloat16.")] = "float32",
) -> None:
    """Show what is installed, which engines and devices work, and what to do about what does not."""
    if parity:
        return _parity(home, parity, engine, dtype)
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vtcli.cli.doctor import examine

    colours = {"ok": "green", "absent": "yellow", "broken": "red"}
    table = Table("", "state", "found", "what to do", title=f"vtcli {__version__}", title_justify="left")
    console, broken = Console(), 0
    with console.status("trying what is installed …"):
        for finding in examine(home):
            colour = colours[finding.state]
            table.add_row(finding.topic, Text(finding.state, colour), Text(finding.found), Text(finding.advice))
            broken += finding.state == "broken"
    console.print(table)
    if broken:
        raise typer.Exit(1)


def _parity(home: Path, model: str, engine: str, dtype: str) -> None:
    """A line a row, and exit code 2 where policy and learner disagree."""
    from vtcli.config.binding import convert
    from vtcli.engines import parity
    from vtcli.engines.policies import Engine
    from vtcli.runs.sources import source_model

    chosen = convert({"name": engine}, Engine, "--engine")
    found = parity.check(
        source_model(cli_artifacts.store_in(home), model).path, chosen, convert(dtype, parity.Dtype, "--dtype")
    )
    for a in found:
        state = "ok" if parity.agrees(a, dtype) else "differs"
        typer.echo(f"{state:<8} {a.name:<16} {a.tokens:>3} tokens {a.images} images  gap {a.gap:.2g}  KL {a.kl:.2g}")
    parity.require(found, dtype)
    typer.echo(f"policy ({engine}) and learner agree on {len(found)} rows in {dtype}")


# -- plan ----------------------------------------------------------------------------------------------------------


@app.command(context_settings=HYDRA_ARGUMENTS)
def plan(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the model with published figures.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure constants here, and write them down.")] = False,
    constants: Annotated[
        Path | None, typer.Option(help="Measured constants. Default: plan.json in VTCLI_HOME.")
    ] = None,
) -> None:
    """Say what `vtcli rl` would need before anything is spent: memory, time, GPU-hours, and what to change.

    Takes rl's arguments and cluster=NODESxGPUSxKIND, say `vtcli plan +recipe=toolsrl cluster=4x8xH200`; the scale is
    paper unless given. Exit code 3: it does not fit.
    """
    from vtcli.cli import plan as planning

    raise typer.Exit(planning.command(ctx.args, planning.Asked(json, check, measure, constants)))


# -- ends ----------------------------------------------------------------------------------------------------------


def _say(message: str) -> None:
    typer.echo(f"vtcli: {message}", err=True)


def _fail(message: str) -> NoReturn:
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    console.print("error: ", style="bold red", end="")
    console.print(message)
    sys.exit(USER_ERROR)


def _disk_problem(error: OSError) -> str | None:
    """A sentence for what a user can mend on a disk; None for anything else."""
    import errno

    advice = {
        errno.ENOSPC: "the disk is full: make room or set VTCLI_HOME to another disk, then give the same command again",
        errno.EDQUOT: "your disk quota is used up: make room, then give the same command again",
        errno.EACCES: "no permission to write there: choose another folder with VTCLI_HOME or start elsewhere",
        errno.EROFS: "that file system is read-only: choose another folder with VTCLI_HOME or start elsewhere",
        errno.ENAMETOOLONG: "a name may have 255 bytes: shorten what you gave, or set VTCLI_HOME to a shorter path",
        errno.ENOTDIR: "a part of that path is a file, not a folder: check it, and VTCLI_HOME",
        errno.ELOOP: "its links lead in a circle: remove one of them, or give another path",
    }.get(error.errno or 0)
    return f"{error.filename or 'writing'}: {error.strerror}; {advice}." if advice else None


def _memory_problem(error: BaseException) -> str | None:
    """A sentence for memory that ran out, here or on a GPU; None for anything else. By names and texts, as importing
    torch for its class would need memory and seconds."""
    text = str(error).strip() or type(error).__name__
    named = isinstance(error, MemoryError) or any(c.__name__ == "OutOfMemoryError" for c in type(error).__mro__)
    if not named and not any(said in text for said in ("can't allocate memory", "Cannot allocate memory")):
        return None
    reason = next((line for line in text.splitlines() if "llocat" in line), text.splitlines()[0])
    return (
        f"out of memory: {reason[:300]}\n"
        "Finished work and the last checkpoint are whole, and the same command continues. What takes less: "
        "micro-batches of fewer tokens (STAGE.backend.batch_tokens=…, the same update), "
        "STAGE.backend.activation_checkpointing=true, STAGE.backend.offload=optimizer, and for rl engine.max_batch=…; "
        "`vtcli plan` says what fits on a GPU."
    )


def _unexpected(error: Exception) -> NoReturn:
    reason = _memory_problem(error)
    if reason is not None:
        _fail(reason)
    traceback.print_exc()
    _say(
        "this is a defect, not a mistake of yours. Finished work is kept, and the same command continues. "
        "A report should hold the command, the lines above and the output of `vtcli doctor`."
    )
    sys.exit(1)


if __name__ == "__main__":
    main()
