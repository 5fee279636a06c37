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
from vtcli.runbook.step import filled
from vtcli.runbook.verbs import IN_RANKS, ON_ACCELERATOR, require_machine, stage_parts

if TYPE_CHECKING:
    from vtcli.config.compose import CommandPlan
    from vtcli.runbook.missing import CommandRequest, Inputs

USER_ERROR = 2

HYDRA_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
OVERRIDES = """Arguments are Hydra's: +recipe=NAME, scale=tiny|small|gpu|node|paper|auto, key=value, +key=value, ~key,
--config-dir FOLDER (of your own, laid out as conf/), --multirun, --cfg job, --resolve. `vtcli config show {stage}`
prints the result and where each value came from."""

app = typer.Typer()


def _add_stage(name: str, summary: str) -> None:
    def command(ctx: typer.Context) -> None:
        run_stage(name, previewing(ctx.args) if name == "synth" else ctx.args)

    command.__doc__ = f"{summary}\n\n{OVERRIDES.format(stage=name)}"
    app.command(name, context_settings=HYDRA_ARGUMENTS)(command)


_add_stage(
    "synth",
    """Make a dataset: charts, pages and scenes with exact ground truth, or rows of others.

    --preview 20 writes a page of imported rows as they were understood, and nothing else.""",
)
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
    argv, why = room.with_scale(stage, argv)
    plan = compose.plan(stage, argv)
    for note in filter(None, (why, plan.note)):
        if _first_rank():
            say(note)
    if not plan.only_prints:
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
    """Runs the command in ranks of this machine, or submits it, where ``launch`` asks for it. False: it runs here."""
    from vtcli.config.binding import convert
    from vtcli.runbook.room import ranks_to_start
    from vtcli.runs import launch

    section = convert(values["launch"], launch.Launch, "launch")
    if launch.launched():
        return False
    if section.how == "slurm" and "SLURM_JOB_ID" not in os.environ:
        say(f"job {launch.submit(stage, [*argv, 'launch=none'])}: `squeue` shows it")
        return True
    ranks = ranks_to_start(stage, values)
    if ranks < 2:
        return False
    say(f"starting {ranks} ranks (launch.ranks=N starts another number, launch=none one)")
    failure = launch.run(ranks, [stage, *argv])
    if failure is None:
        return True
    if failure.code == USER_ERROR:
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
    _check(compose.plan(plan.stage, whole), whole)
    for each in inputs.steps:
        if not each.shipped:
            _check(compose.plan(each.step.verb, each.step.argv({})), each.step.argv({}))
    if _first_rank():
        for note in inputs.notes:
            say(note)
    if inputs.steps and (reason := missing.why_not_here(request)):
        raise ConfigError(
            f"{next(iter(inputs.found))}: needs a value ({reason}).\n  these commands make what is missing, in this "
            f"order:\n{missing.listed(request, inputs, own=True)}"
        )
    made = _make(request, inputs)
    return filled(inputs.found, made)


def _make(request: CommandRequest, inputs: Inputs) -> dict[str, str]:
    """Runs the steps, each as a process of its own. Returns the artifacts by the names of their products."""
    from vtcli.runbook import missing, runner

    if inputs.steps:
        say(
            f"these commands make what is missing (make_missing=false does not):\n"
            f"{missing.listed(request, inputs, own=False)}"
            + (f"\n  then this command has {price}" if (price := missing.own_cost(request)) else "")
        )
    return runner.here([each.step for each in inputs.steps])


def _check(plan: CommandPlan, argv: Sequence[str]) -> None:
    """Check every job of a plan, so that a mistake ends the command before anything is made."""
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
    """One job of a stage, here or in a launcher's process: build its config, run it, print and return what it made."""
    from vtcli.config import commandline, compose
    from vtcli.runs import slurm

    stage = str(values["stage"])
    slurm.adopt_ranks()
    if stage not in IN_RANKS:
        slurm.require_one_process(stage)
    elif _launched(stage, values, commandline.arguments()):  # a job of a sweep: run_stage has launched any other
        return ""
    with results_only():
        config_class, run = stage_parts(stage)
        artifact = run(compose.build(config_class, compose.Job(stage, values, {})))
    if artifact is None:  # serve makes none, a preview neither
        return ""
    made = f"{artifact.ref}\t{artifact.path}"
    if _first_rank():
        print_line(made, sys.stdout)
    return made


def _first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"
