"""A command for every stage: compose and check what was asked for, run it, print the artifact that it made."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from vtcli.cli.console import results_only, say
from vtcli.errors import ConfigError, VtcliError
from vtcli.foreign import print_line
from vtcli.runbook.step import IN_RANKS, ON_ACCELERATOR, filled, require_machine, stage_parts
from vtcli.runs.closing import say_next

if TYPE_CHECKING:
    from vtcli.config.compose import CommandPlan
    from vtcli.runbook.missing import CommandRequest, Inputs

USER_ERROR = 2

PREVIEWS = ("synth.preview=", "synth.distil.dry_run=")
"""Words with which synth makes no artifact."""

HYDRA_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
COMMON = """\b
{rows}
  scale=SIZE            tiny, small, gpu, node or paper; default: the largest
                        that fits this machine (sizes, never the method)
  name=NAME seed=0      of the artifact
  --config-dir FOLDER   of your own, laid out as conf/
  --multirun            key=1,2,3 runs each; --cfg job prints and runs nothing

`vtcli config show {stage} +recipe=NAME` prints every key, its value and the
file and line that set it."""
"""The end of a stage's help."""
RECIPE = """  +recipe=NAME          toolsrl, codev, codevision, codedance, pyvision_image,
                        pyvision_video, deepeyes, …: `vtcli rl` lists all"""
DATA = "  data=REF              rows: NAME:vN, NAME@latest, or a file of conf/data"
MODEL = "  model=REF             NAME:vN, NAME@latest, a folder, a hub name"

app = typer.Typer()


def _add_stage(name: str, summary: str, rest: str, *rows: str) -> None:
    """Adds a stage's command. ``rest`` has examples, and ``rows`` are the keys that are given most."""

    def command(ctx: typer.Context) -> None:
        run_stage(name, previewing(ctx.args) if name == "synth" else ctx.args)

    common = COMMON.format(stage=name, rows="\n".join(rows))
    command.__doc__ = f"{summary}\n\n\b\n{rest}\n\n{common}"
    metavar = "[KEY=VALUE]... [OPTIONS]"
    app.command(name, context_settings=HYDRA_ARGUMENTS, options_metavar=metavar, short_help=summary)(command)


_add_stage(
    "synth",
    "Make a dataset, of generators or of rows of yours.",
    """Examples:
  vtcli synth +recipe=toolsrl                    charts, pages and scenes
  vtcli synth +recipe=codev data=mine --config-dir my --preview 20
                                                 a page of your rows, no more
  vtcli synth +recipe=codev data=mine --config-dir my name=mine""",
    "  data=NAME             a file of conf/data or of your folder (docs/data.md)",
    RECIPE,
    "  synth.forms=[answer]  plain questions alone; synth.bad_rows=skip",
    "  teacher=endpoint      demonstrations of a large model (docs/teachers.md)",
)
_add_stage(
    "filter",
    "Keep the rows that rules want; count and list the others.",
    """Examples:
  vtcli filter data=data@latest filter=near name=clean
  vtcli filter data=data@latest model=base@latest filter=mixed""",
    "  data=REF              a dataset or demonstrations",
    "  filter=NAME           rows, near, contamination, mixed, hard, judged, …",
    "  model=REF +recipe=…   for pass rates: who answers, in which environment",
    "  filter.rules.KEY=…    `vtcli config show filter` has the rules",
)
_add_stage(
    "sft",
    "Train on demonstrations.",
    """Example:
  vtcli sft +recipe=codevision data=demos@latest model=qwen2_5_vl_3b""",
    RECIPE,
    "  data=REF              demonstrations (docs/teachers.md)",
    MODEL,
    "  sft.epochs=2 sft.optim.lr=1e-5 sft.rows_per_step=128 sft.max_tokens=8192",
)
_add_stage(
    "rl",
    "Train by reinforcement with tools, phase by phase.",
    """Examples:
  vtcli rl +recipe=toolsrl                       makes its data, and trains
  vtcli rl +recipe=codev data=mine@latest model=policy:v3 engine=vllm""",
    RECIPE,
    DATA,
    MODEL,
    "  engine=NAME           hf, vllm, vllm_server; judge=openai, tracker=wandb",
    "  rl.steps_per_phase=100 rl.prompts_per_step=64 rl.group_size=8",
    "  rl.optim.lr=1e-6 rl.loss.kl_coef=0.001 rl.checkpoint_every=20",
)
_add_stage(
    "eval",
    "Measure a model and write a report with intervals.",
    """Examples:
  vtcli eval +recipe=toolsrl model=policy@latest data=data@latest
  vtcli eval +recipe=codev model=policy@latest benchmark=[vstar]
  vtcli eval eval.policy=endpoint eval.model=NAME benchmark=[vstar]
             eval.endpoint.url=http://host:8000/v1""",
    MODEL,
    "  data=REF              held-out rows; or benchmark=[vstar,hrbench_4k]",
    RECIPE,
    "  eval.baseline=REF     another report, compared by paired differences",
    "  probe=causal          does the answer rest on the picture? judge=openai",
)
_add_stage(
    "judge",
    "Score stored trajectories under a recipe's reward.",
    """Examples:
  vtcli judge report@latest +recipe=codev        totals and parts
  vtcli judge rollouts.jsonl --all-recipes       recipes x trajectories
  vtcli judge agreement A B                      two judgements of the same""",
    "  TRAJECTORIES          a report, a model of rl, a folder or a JSONL file",
    RECIPE,
    "  judge=openai judge.url=URL judge.model=NAME    who is asked",
)
_add_stage(
    "serve",
    "Serve a model as an agent behind an OpenAI-compatible endpoint.",
    """Examples:
  vtcli serve model=policy@latest                http://127.0.0.1:8000/v1
  vtcli serve serve.policy=endpoint model=NAME env=native scale=gpu
              serve.endpoint.url=https://api.example/v1""",
    MODEL,
    "  +recipe=NAME          of a model that names no environment of its own",
    "  port=8000 serve.host=0.0.0.0                   wants VTCLI_API_KEY",
)


def previewing(argv: list[str]) -> list[str]:
    """Writes ``--preview 20`` as the key that it stands for. Raises ``ConfigError`` for 0, which shows no row.

    >>> previewing(["data=mine", "--preview", "20"]), previewing(["--preview=5"])
    (['data=mine', 'synth.preview=20'], ['synth.preview=5'])
    """
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--preview":
            words[-1] = f"--preview={word}"
        else:
            words.append(word)
    if "--preview=0" in words:
        raise ConfigError("--preview 0: expected at least 1 row. Leave --preview out to import all of them.")
    words = ["--preview=20" if word == "--preview" else word for word in words]
    return [f"synth.{word[2:]}" if word.startswith("--preview=") else word for word in words]


def run_stage(stage: str, argv: list[str]) -> None:
    """Compose and check everything that ``argv`` asks for, make inputs that it does not name, and run it through
    Hydra."""
    from vtcli.config import compose
    from vtcli.runbook import missing, room
    from vtcli.runs import slurm

    slurm.adopt_ranks()
    # First of all, because the scale decides which data, model and engine the rest of the command means.
    argv, why = room.with_scale(stage, argv)
    plan = compose.plan(stage, argv)
    for note in filter(None, (why, plan.note)):
        if _first_rank():
            say(note)
    if not plan.only_prints:
        # Not for --cfg and --info, which only print: they may show a configuration that could not run.
        missing.require_recipe(plan)
        missing.require_effect(plan, argv)
        argv = [*argv, *_inputs(plan, argv)]
        plan = compose.plan(stage, argv)
        _check(plan, argv)
        if not plan.multirun and stage in IN_RANKS and _launched(stage, next(compose.jobs(plan)).values, argv):
            return
    for line in compose.run(plan, work):
        print_line(line, sys.stdout)


def _launched(stage: str, values: dict[str, Any], argv: list[str]) -> bool:
    """Runs the command in ranks of this machine, or submits it, as ``launch`` sets. Returns False to run it here."""
    from vtcli.config.binding import convert
    from vtcli.runbook.room import ranks_to_start
    from vtcli.runs import launch

    section = convert(values["launch"], launch.Launch, "launch")
    # A rank that started ranks would start them without end.
    if launch.launched():
        return False
    if section.how == "slurm" and "SLURM_JOB_ID" not in os.environ:
        say(f"job {launch.submit(stage, [*argv, 'launch=none'])}: `squeue` shows it")
        say_next("view", "--live")
        return True
    ranks = ranks_to_start(stage, values)
    if ranks < 2:
        return False
    say(f"starting {ranks} ranks (launch.ranks=N starts another number, launch=none one)")
    failure = launch.run(ranks, [stage, *argv])
    if failure is None:
        return True
    if failure.code == USER_ERROR:
        # The rank has printed nothing, and this process prints the error as if it were its own.
        raise VtcliError(failure.message)
    say(failure.message)
    raise SystemExit(failure.code)


def _inputs(plan: CommandPlan, argv: list[str]) -> list[str]:
    """Returns overrides with artifacts for the inputs that ``argv`` leaves out, and makes missing ones first.

    Raises:
        ConfigError: an input is missing that cannot be made, or is not to be made here; or a command is wrong.
        SystemExit: a command that makes an input has failed.
    """
    from vtcli.config import compose
    from vtcli.runbook import missing

    if not missing.leaves_out(plan):
        return []
    job = next(compose.jobs(plan))
    require_machine(job)
    request = missing.CommandRequest.of(plan, argv, job.values)
    if request is None or not request.unnamed:
        return []
    missing.require_named(request)
    inputs = missing.resolve(request)
    missing.require_wanted(request, inputs)
    whole = [*argv, *filled(inputs.found, {})]
    # The command itself before those that make its inputs: a mistake in it must not show after hours of training.
    _check(compose.plan(plan.stage, whole), whole)
    for each in inputs.steps:
        if not each.shipped:
            _check(compose.plan(each.step.verb, each.step.argv({})), each.step.argv({}))
    if _first_rank():
        for note in inputs.notes:
            say(note)
    if inputs.steps and (reason := missing.why_not_here(request)):
        raise ConfigError(
            f"{next(iter(inputs.found))}: needs a value ({reason}).\n  these commands make the missing inputs, in this "
            f"order:\n{missing.listed(request, inputs, own=True)}"
        )
    made = _make(request, inputs)
    return filled(inputs.found, made)


def _make(request: CommandRequest, inputs: Inputs) -> dict[str, str]:
    """Runs the steps, each as a separate process. Returns the artifacts by the names of their products."""
    from vtcli.runbook import missing, runner

    if inputs.steps:
        say(
            f"these commands make what is missing (make_missing=false does not):\n"
            f"{missing.listed(request, inputs, own=False)}"
            + (f"\n  then this command has {price}" if (price := missing.own_cost(request)) else "")
        )
    return runner.here([each.step for each in inputs.steps])


def _check(plan: CommandPlan, argv: Sequence[str]) -> None:
    """Checks every job of a plan, so that a mistake ends the command before anything is made."""
    from vtcli.config import compose
    from vtcli.runbook.room import require_room
    from vtcli.runs.run import RunSettings

    for job in compose.jobs(plan):
        require_machine(job)
        compose.build(stage_parts(plan.stage)[0], job)
        compose.located(job, partial(RunSettings.of, job.values, plan.stage))
        if plan.stage in ON_ACCELERATOR:
            require_room(plan.stage, job.values, argv)


def work(values: dict[str, Any]) -> str:
    """Runs one job of a stage, here or in a launcher's process, and prints and returns its artifact."""
    from vtcli.config import commandline, compose
    from vtcli.runbook.reader import say_next_of
    from vtcli.runs import slurm

    stage = str(values["stage"])
    slurm.adopt_ranks()
    if stage not in IN_RANKS:
        slurm.require_one_process(stage)
    elif _launched(stage, values, commandline.arguments()):  # a job of a sweep: run_stage has launched any other
        return ""
    if not sys.stderr.isatty():  # a bar of transformers would be one line of a thousand characters in a log file
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with results_only():
        config_class, run = stage_parts(stage)
        artifact = run(compose.build(config_class, compose.Job(stage, values, {})))
    words = commandline.arguments()
    if artifact is None:  # serve makes none, and neither does a synth that only previews or counts the cost
        if stage == "synth":
            say_next(stage, *(word for word in words if not word.startswith(PREVIEWS)))
        return ""
    made = f"{artifact.ref}\t{artifact.path}"
    if _first_rank():
        print_line(made, sys.stdout)
    say_next_of(artifact, [word for word in words if word.startswith("--config-dir=")])
    return made


def _first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"
