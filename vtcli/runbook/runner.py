"""Runs steps, here one after the other or as Slurm jobs that wait for each other."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vtcli.config import compose
from vtcli.config.commandline import split
from vtcli.errors import ConfigError
from vtcli.foreign import print_line
from vtcli.runbook.step import STAGES, Step
from vtcli.runs.closing import STEP
from vtcli.store.artifacts import ArtifactStore

SHARDS = 4
"""Tasks of the array that makes data."""


def here(steps: Sequence[Step]) -> dict[str, str]:
    """Runs the steps in order, each as a process, and returns the artifacts by name. A command that has made its
    artifact before finds it; a command that was killed continues.

    Raises:
        SystemExit: a command failed; has its exit code.
    """
    made: dict[str, str] = {}
    for number, step in enumerate(steps, 1):
        _say(f"step {number} of {len(steps)}: {step.line(made)}")
        code, made[step.makes] = run(step.command(made))
        if code or not made[step.makes]:
            _say(
                f"step {number} of {len(steps)} failed with exit code {code}. Finished steps stay: the same command "
                "continues there."
            )
            raise SystemExit(code or 1)
    return made


def _say(message: str) -> None:
    print_line(f"vtcli: {message}")


def options_of(stage: str) -> str:
    """Returns the variable with sbatch's options for a stage.

    >>> options_of("rl")
    'RL_SBATCH'
    """
    return f"{stage.upper()}_SBATCH"


def as_jobs(steps: Sequence[Step]) -> list[str]:
    """Submits the commands to Slurm, each after the jobs that make its inputs. ``SYNTH_SBATCH``, ``RL_SBATCH`` and so
    on have options of sbatch for a stage. A copy of an artifact, which no stage makes, is made here at once. Returns
    the numbers of the jobs; if one is refused, cancels all."""
    if shutil.which("sbatch") is None:
        raise ConfigError("SLURM=1: there is no sbatch here. Run this where jobs are submitted")
    variables = {step.verb: options_of(step.verb) for step in steps if step.verb in STAGES}
    options = {stage: split(name, os.environ.get(name, "")) for stage, name in variables.items()}
    for stage, words in options.items():
        if any(re.match(r"--array\b|-a", word) for word in words):
            raise ConfigError(
                f"{variables[stage]} may not set --array: data are made in {SHARDS} shards, the rest at once"
            )
    # --kill-on-invalid-dep below: without it a job behind a failed one would wait in the queue for ever.
    here([step for step in steps if step.verb not in STAGES])
    jobs: dict[str, str] = {}
    numbers: list[str] = []

    def submit(script: str, step: Step, after: Sequence[str], array: str, more: Sequence[str] = ()) -> str:
        waits = [f"--dependency=afterok:{':'.join(after)}"] if after else []
        line = ["sbatch", "--parsable", "--kill-on-invalid-dep=yes", *waits, *([array] if array else [])]
        done = subprocess.run(
            [*line, *options[step.verb], str(scripts() / f"{script}.sbatch"), *step.argv({}), *more],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            if numbers:
                subprocess.run(["scancel", *numbers], check=False)
            raise ConfigError(f"sbatch refuses {script} for {step.makes}, and no job stays: {done.stderr.strip()}")
        numbers.append(done.stdout.strip().partition(";")[0])
        _say(f"{numbers[-1]:<8} {script:<12} {step.makes}{'   after ' + ':'.join(after) if after else ''}")
        return numbers[-1]

    for step in (each for each in steps if each.verb in STAGES):
        after = [jobs[name] for name in step.names if name in jobs]
        if step.verb == "synth":
            shards = submit("synth", step, after, f"--array=1-{SHARDS}")
            jobs[step.makes] = submit("synth_merge", step, [shards], "", [f"synth.merge={SHARDS}"])
        else:
            jobs[step.makes] = submit(step.verb, step, after, "")
    return numbers


def differing(steps: Sequence[Step], home: Path) -> Iterator[str]:
    """Yields a line for each newest artifact that was made with other words than its step has, or from older inputs
    than exist now. Ignores where it was stored and tracked."""
    store = ArtifactStore(home)
    for step in (each for each in steps if each.verb in STAGES):
        aside = ("stage", "home", "tracker", "synth.merge", "synth.shard", "synth.workers", *step.reads)
        words = compose.plan(step.verb, step.arguments).overrides  # with the data that the recipe has at this scale
        for artifact in store.newest(step.makes):
            made, asked = (_deciding(each, aside) for each in (artifact.manifest.overrides, words))
            if made and made != asked:
                more, less = (" ".join(sorted(each)) or "nothing" for each in (made - asked, asked - made))
                yield f"{artifact.ref} was made with {more} in place of {less}"
            read = {parent.ref.rpartition(":")[0]: parent for parent in artifact.manifest.parents}
            for newest in (one for name in step.names if name in read for one in store.newest(name)):
                if newest.digest != read[newest.name].digest:
                    yield f"{artifact.ref} was made from {read[newest.name].ref} in place of {newest.ref}"


def _deciding(words: Sequence[str], aside: Sequence[str]) -> set[str]:
    """Returns overrides without those of some keys; of several with one key the last, which counts."""
    plain = [word.lstrip("+") for word in words if "=" in word or word.startswith("~")]
    last = {word.partition("=")[0]: word for word in plain}
    return {word for key, word in last.items() if key not in aside}


def home(steps: Sequence[Step]) -> Path:
    """Returns the folder of the artifacts that the steps make."""
    step = next(each for each in steps if each.verb in STAGES)
    return Path(str(compose.load(step.verb, step.argv({})).values["home"]))


def latest(steps: Sequence[Step]) -> Mapping[str, str]:
    """Returns the newest artifact of each name."""
    return {step.makes: f"{step.makes}@latest" for step in steps}


def scripts() -> Path:
    """Returns the folder of the batch scripts, of a checkout or of an installed package."""
    import stages

    return Path(str(stages.__file__)).parent / "slurm"


def run(argv: Sequence[str]) -> tuple[int, str]:
    """Runs ``vtcli ARGV`` to its end. Returns its exit code and the reference of the artifact that it prints.

    Passes on Ctrl-C and SIGTERM. The child has a separate session, so that it gets each signal once and not from the
    terminal too. Does not pass ``MLFLOW_RUN_ID``, because several children would write into one run.
    """
    command = [sys.executable, "-m", "vtcli.cli.child", *argv]
    pipe = subprocess.PIPE
    env = {name: value for name, value in os.environ.items() if name != "MLFLOW_RUN_ID"} | {STEP: "1"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True, env=env) as child:
        try:
            assert child.stdout is not None
            printed = child.stdout.read().splitlines()
            code = child.wait()
        except BaseException as end:
            child.send_signal(signal.SIGINT if isinstance(end, KeyboardInterrupt) else signal.SIGTERM)
            child.wait()
            raise
    return code if code >= 0 else 128 - code, printed[-1].partition("\t")[0] if printed else ""
