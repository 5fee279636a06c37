"""A command for every stage: compose and check what was asked for, run it, print the artifact that it made."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from vtcli.cli.console import results_only, say

if TYPE_CHECKING:
    from vtcli.config.compose import Job

STAGES = ("synth", "filter", "sft", "rl", "eval", "judge", "serve")
ON_ACCELERATOR = ("sft", "rl", "eval", "serve")
"""Stages that load a model, so that a scale too large for the machine is refused before they start."""
IN_RANKS = ("sft", "rl")

HYDRA_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
OVERRIDES = """Arguments are Hydra's: +recipe=NAME, scale=tiny|gpu|node|paper|auto, key=value, +key=value, ~key,
--multirun, --cfg job, --resolve. `vtcli config show {stage}` prints the result and where each value came from."""

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
    """Writes ``--preview 20`` as the key that it stands for.

    >>> previewing(["data=mine", "--preview", "20"]), previewing(["--preview=5"])
    (['data=mine', 'synth.preview=20'], ['synth.preview=5'])
    """
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--preview":
            words[-1] = f"synth.preview={word}"
        else:
            words.append(word.replace("--preview=", "synth.preview=", 1) if word.startswith("--preview=") else word)
    return ["synth.preview=20" if word == "--preview" else word for word in words]


def run_stage(stage: str, argv: list[str]) -> None:
    """Compose and check everything that ``argv`` asks for, then run it through Hydra."""
    from vtcli.cli.room import require_room
    from vtcli.config import compose, machine
    from vtcli.runs import slurm
    from vtcli.runs.run import RunSettings

    slurm.adopt_ranks()
    plan = compose.plan(stage, argv)
    if plan.note and os.environ.get("RANK", "0") == "0":
        say(plan.note)
    for job in compose.jobs(plan):
        if plan.only_prints:
            continue
        if stage in ON_ACCELERATOR and (job.values.get(stage) or {}).get("policy") != "endpoint":
            machine.require(str(job.values["scale"]), _model_of(job), compose.scales())
        _build(stage, argv, job)
        compose.located(job, partial(RunSettings.of, job.values, stage))
        if stage in IN_RANKS:
            require_room(stage, job.values)
    for line in compose.run(plan, work):
        typer.echo(line)


def _build(stage: str, argv: list[str], job: Job) -> None:
    """Check the configuration. Raises ``ConfigError``; where inputs are not named, it says which commands make them."""
    from vtcli.cli.pipeline import made_by
    from vtcli.config import compose
    from vtcli.errors import ConfigError

    try:
        compose.build(stage_parts(stage)[0], job)
    except ConfigError as problem:
        missing = str(problem).startswith(f"{stage}.data: needs a value")
        commands = made_by(stage, argv, job.values, compose.options("recipe")) if missing else []
        if not commands:
            raise
        listed = "\n".join(f"    {command}" for command in commands)
        raise ConfigError(f"{problem}\n  these commands make what is missing, in this order:\n{listed}") from None


def work(values: dict[str, Any]) -> str:
    """One job of a stage, here or in a launcher's process: build its config, run it, print and return what it made."""
    from vtcli.config import compose
    from vtcli.runs import slurm

    stage = str(values["stage"])
    slurm.adopt_ranks()
    if stage not in IN_RANKS:
        slurm.require_one_process(stage)
    with results_only():
        config_class, run = stage_parts(stage)
        artifact = run(compose.build(config_class, compose.Job(stage, values, {})))
    if artifact is None:  # serve makes none, a preview neither
        return ""
    made = f"{artifact.ref}\t{artifact.path}"
    if os.environ.get("RANK", "0") == "0":
        typer.echo(made)
    return made


def stage_parts(stage: str) -> tuple[type[Any], Callable[[Any], Any]]:
    """The config dataclass and ``run`` of ``stages/<stage>.py``."""
    module = importlib.import_module(f"stages.{stage}")
    return module.Config, module.run


def _model_of(job: Job) -> str | None:
    own = job.values.get(job.stage) or {}
    named = own.get("model") or (job.values.get("model") or {}).get("path")
    return None if named in (None, "???") else str(named)
