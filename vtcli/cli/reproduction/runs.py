"""Execution of the commands, here one after the other or as jobs of Slurm that wait for each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vtcli.cli import cost
from vtcli.cli.console import say
from vtcli.cli.reproduction.graph import PaperCommand
from vtcli.cli.stages import IN_RANKS
from vtcli.cli.steps import run
from vtcli.config import compose, machine
from vtcli.config.commandline import split
from vtcli.errors import ConfigError
from vtcli.store.artifacts import ArtifactStore

SHARDS = 4
"""Tasks of the array that makes data."""


def here(steps: Sequence[PaperCommand]) -> dict[str, str]:
    """Runs the commands in order. Training gets a process for each GPU of this machine. What exists already is found by
    each command and is not made again. Returns the artifacts by name.

    Raises:
        SystemExit: a command has failed; with its exit code.
    """
    made: dict[str, str] = {}
    for number, step in enumerate(steps, 1):
        say(f"step {number} of {len(steps)}: {step.line(made)}")
        ranks = ranks_of(step)
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}") if ranks > 1 else ()
        code, made[step.makes] = run([step.stage, *step.argv(made)], launcher)
        if code or not made[step.makes]:
            say(f"step {number} of {len(steps)} has failed. What is finished stays: the same command goes on there.")
            raise SystemExit(code or 1)
    return made


def ranks_of(step: PaperCommand) -> int:
    """Processes of a command on this machine: of training one for each GPU that servers of vLLM leave, else one."""
    gpus = len(machine.gpus())
    if step.stage not in IN_RANKS or gpus < 2:
        return 1
    serving = cost.layout(compose.load("rl", step.argv({})).values, gpus).serving if step.stage == "rl" else 0
    return gpus - serving


def options_of(stage: str) -> str:
    """The variable with options of sbatch for a stage.

    >>> options_of("rl")
    'RL_SBATCH'
    """
    return f"{stage.upper()}_SBATCH"


def as_jobs(steps: Sequence[PaperCommand]) -> list[str]:
    """Submits the commands to Slurm, each after the jobs whose artifacts it reads. ``SYNTH_SBATCH``, ``RL_SBATCH`` and
    their like are options of sbatch for a stage. Returns the numbers of the jobs; none stays if one is refused."""
    if shutil.which("sbatch") is None:
        raise ConfigError("SLURM=1: there is no sbatch here. Run this where jobs are submitted")
    variables = {step.stage: options_of(step.stage) for step in steps}
    options = {stage: split(name, os.environ.get(name, "")) for stage, name in variables.items()}
    for stage, words in options.items():
        if any(re.match(r"--array\b|-a", word) for word in words):
            raise ConfigError(
                f"{variables[stage]} may not set --array: data are made in {SHARDS} shards, the rest at once"
            )
    jobs: dict[str, str] = {}
    numbers: list[str] = []

    def submit(script: str, step: PaperCommand, after: Sequence[str], array: str, more: Sequence[str] = ()) -> str:
        waits = [f"--dependency=afterok:{':'.join(after)}"] if after else []
        line = ["sbatch", "--parsable", "--kill-on-invalid-dep=yes", *waits, *([array] if array else [])]
        done = subprocess.run(
            [*line, *options[step.stage], str(scripts() / f"{script}.sbatch"), *step.argv({}), *more],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            if numbers:
                subprocess.run(["scancel", *numbers], check=False)
            raise ConfigError(f"sbatch refuses {script} for {step.makes}, and no job stays: {done.stderr.strip()}")
        numbers.append(done.stdout.strip().partition(";")[0])
        say(f"{numbers[-1]:<8} {script:<12} {step.makes}{'   after ' + ':'.join(after) if after else ''}")
        return numbers[-1]

    for step in steps:
        after = [jobs[name] for name in step.reads.values() if name in jobs]
        if step.stage == "synth":
            shards = submit("synth", step, after, f"--array=1-{SHARDS}")
            jobs[step.makes] = submit("synth_merge", step, [shards], "", [f"synth.merge={SHARDS}"])
        else:
            jobs[step.makes] = submit(step.stage, step, after, "")
    return numbers


def differing(steps: Sequence[PaperCommand], home: Path) -> Iterator[str]:
    """A line for each newest artifact that was made with other words than its step has, or from older inputs than are
    there. Where it was kept and tracked does not count."""
    store = ArtifactStore(home)
    for step in steps:
        aside = ("stage", "home", "tracker", "synth.merge", "synth.shard", "synth.workers", *step.reads)
        words = compose.plan(step.stage, step.words).overrides  # with the data that the recipe has at this scale
        for artifact in store.newest(step.makes):
            made, asked = (_deciding(each, aside) for each in (artifact.manifest.overrides, words))
            if made and made != asked:
                more, less = (" ".join(sorted(each)) or "nothing" for each in (made - asked, asked - made))
                yield f"{artifact.ref} was made with {more} in place of {less}"
            read = {parent.ref.rpartition(":")[0]: parent for parent in artifact.manifest.parents}
            for newest in (one for name in step.reads.values() if name in read for one in store.newest(name)):
                if newest.digest != read[newest.name].digest:
                    yield f"{artifact.ref} was made from {read[newest.name].ref} in place of {newest.ref}"


def _deciding(words: Sequence[str], aside: Sequence[str]) -> set[str]:
    """Overrides without those of some keys; of several of one key the last, which counts."""
    plain = [word.lstrip("+") for word in words if "=" in word or word.startswith("~")]
    last = {word.partition("=")[0]: word for word in plain}
    return {word for key, word in last.items() if key not in aside}


def latest(steps: Sequence[PaperCommand]) -> Mapping[str, str]:
    """The newest artifact of each name."""
    return {step.makes: f"{step.makes}@latest" for step in steps}


def scripts() -> Path:
    """The folder of the batch scripts, of a checkout or of an installed package."""
    import stages

    return Path(str(stages.__file__)).parent / "slurm"
