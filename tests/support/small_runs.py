"""The stages at the smallest size that is still the real thing, in this process or as commands of their own."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from vtcli.cli.main import USER_ERROR, app
from vtcli.config import compose
from vtcli.errors import VtcliError
from vtcli.runbook.step import stage_parts
from vtcli.store.artifacts import Artifact

TASKS = ("rotflip", "zoom", "read_value", "count")
SMALL = [
    "scale=tiny",
    "tracker=none",
    *(f"data.tasks.{task}.{split}=2" for task in TASKS for split in ("train", "validation", "test")),
    *("model.architecture.hidden_size=48", "model.architecture.layers=1", "model.architecture.heads=3"),
    *("model.architecture.kv_heads=1", "model.architecture.intermediate_size=64", "model.architecture.vision_depth=1"),
    *("model.architecture.vision_hidden_size=32", "model.architecture.vision_heads=2"),
]
DEMOS = [
    *("+recipe=tiny_base", "name=demos", "synth.workers=1", "synth.demos.validation=0.2"),
    *(f"synth.demos.rows.{task}.{kind}=2" for task in TASKS for kind in ("tool", "answer", "perceive")),
]
DATASET = ["+recipe=toolsrl", "name=data", "synth.workers=1"]
SFT = ["+recipe=tiny_base", "sft.data=demos@latest", "sft.epochs=1", "sft.rows_per_step=8", "sft.checkpoint_every=1"]
SFT += ["sft.checkpoint_best=loss", "sft.checkpoint_best_mode=min"]


def phase(name: str, form: str, reward: str) -> str:
    own = f"{{_target_:vtcli.rewards.toolsrl.{reward}}}"
    return f"{{name:{name},steps:1,form:{form},reward:{{_target_:uneven.reward,of:{own}}}}}"


RL = [
    *("+recipe=toolsrl", "rl.data=data@latest", "rl.model=base@latest"),
    *("rl.prompts_per_step=2", "rl.group_size=2", "agent.limits.max_turn_tokens=24"),
    "rl.max_banned_mass=1",  # its base model has hardly been taught
    "+signals.sampled._target_=uneven.measure",
    # Three prompts, and four of six rollouts are learnt from.
    "rl.updates_per_step=2",
    *("rl.fill.oversample=1.5", "rl.select.rank=std", "rl.select.drop_equal=true"),
    "rl.checkpoint_best=reward",
    f"rl.phases=[{phase('tools', 'tool', 'stage1')},{phase('answers', 'answer', 'stage2')}]",
]


EVAL = ["+recipe=toolsrl", "eval.data=data@latest", "eval.model=policy@latest", "eval.max_samples=2"]

LIMIT_S = 240


def _words(home: Path, arguments: Sequence[str]) -> list[str]:
    return [*arguments, *SMALL, f"home={home}"]


def run(home: Path, stage: str, arguments: Sequence[str]) -> Artifact:
    """Runs a stage in this process, as the command does after its configuration is composed. Raises its errors."""
    config_class, run_stage = stage_parts(stage)
    return run_stage(compose.build(config_class, compose.load(stage, _words(home, arguments))))


def command(argv: Sequence[str]) -> tuple[int, str]:
    """Runs ``vtcli ARGV`` in this process, with Hydra. Returns its exit code and what it printed; messages go to
    standard error."""
    code, printed = 0, io.StringIO()
    handlers, level = [*logging.root.handlers], logging.root.level
    try:
        with redirect_stdout(printed):
            app([*argv], standalone_mode=False)
    except VtcliError as error:
        sys.stderr.write(f"error: {error}\n")
        code = USER_ERROR
    except SystemExit as end:
        code = int(end.code or 0)
    finally:  # Hydra sets up the logs of its process
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
    return code, printed.getvalue()


def step(argv: Sequence[str]) -> tuple[int, str]:
    """Stands for ``vtcli.runbook.runner.run`` in this process: the exit code and the reference of what was made."""
    code, printed = command(argv)
    return code, printed.splitlines()[-1].partition("\t")[0] if printed else ""


def start(
    home: Path, stage: str, arguments: Sequence[str], launcher: Sequence[str] = (), **env: str
) -> subprocess.Popen[str]:
    """Starts a stage as a process of its own, for what only a process has: signals, exit codes, ranks."""
    command = [sys.executable, *launcher, "-m", "vtcli", stage, *_words(home, arguments)]
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])  # for uneven.py
    environ = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **env}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ, cwd=home.parent
    )


def launched(home: Path, stage: str, arguments: Sequence[str], launcher: Sequence[str]) -> str:
    """Starts a stage with a launcher, such as torchrun, and returns its output. It must succeed."""
    process = start(home, stage, arguments, launcher)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output[-4000:]
    return output


def kill_after_checkpoint(
    home: Path, stage: str, arguments: Sequence[str], number: int = signal.SIGKILL
) -> subprocess.CompletedProcess[str]:
    """Starts a stage and sends a signal as soon as its first checkpoint is whole; it must not have finished."""
    process = start(home, stage, arguments)
    deadline = time.monotonic() + LIMIT_S
    while not list((home / ".work").glob(f"{stage}-*/checkpoints/step-*/done.json")):
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
