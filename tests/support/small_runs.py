"""The stages as commands of their own, at the smallest size that is still the real thing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import forked

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
    *("rl.prompts_per_step=2", "rl.group_size=2", "rl.limits.max_turn_tokens=24"),
    "+signals.sampled._target_=uneven.measure",
    # Three prompts, and four of six rollouts are learnt from.
    "rl.updates_per_step=2",
    *("rl.fill.oversample=1.5", "rl.select.rank=std", "rl.select.drop_equal=true"),
    "rl.checkpoint_best=reward",
    f"rl.phases=[{phase('tools', 'tool', 'stage1')},{phase('answers', 'answer', 'stage2')}]",
]


LIMIT_S = 240


def _words(home: Path, stage: str, arguments: Sequence[str]) -> list[str]:
    return [stage, *arguments, *SMALL, f"home={home}"]


def _environ(**more: str) -> dict[str, str]:
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])  # for uneven.py
    return {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}


def start(
    home: Path, stage: str, arguments: Sequence[str], launcher: Sequence[str] = (), **env: str
) -> subprocess.Popen[str]:
    """A stage as a process of its own, as a user starts it."""
    command = [sys.executable, *launcher, "-m", "vtcli", *_words(home, stage, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environ(**env), cwd=home.parent
    )


def run(home: Path, stage: str, arguments: Sequence[str], launcher: Sequence[str] = ()) -> str:
    """A stage that must succeed; its output. Without a launcher it is forked from a process with the libraries."""
    if launcher:
        process = start(home, stage, arguments, launcher)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output[-4000:]
        return output
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "output")
        forked_stage = forked.start("vtcli", _words(home, stage, arguments), _environ(), home.parent, written)
        forked_stage.join(LIMIT_S)
        if forked_stage.exitcode is None:
            forked_stage.kill()
        assert forked_stage.exitcode == 0, written.read_text()[-4000:]
        return written.read_text()


def kill_after_checkpoint(
    home: Path, stage: str, arguments: Sequence[str], number: int = signal.SIGKILL
) -> subprocess.CompletedProcess[str]:
    """Starts a stage and sends a signal as soon as its first checkpoint is whole; it must not have finished."""
    process = start(home, stage, arguments)
    deadline = time.monotonic() + 240
    while not list((home / ".work").glob(f"{stage}-*/checkpoints/step-*/done.json")):
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def made_by_every_stage(folder: Path) -> Path:
    """An artifact store with demonstrations, a dataset, a base model and a policy."""
    home = folder / "artifacts"
    for stage, arguments in (("synth", DEMOS), ("synth", DATASET), ("sft", SFT), ("rl", RL)):
        run(home, stage, arguments)
    return home


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
