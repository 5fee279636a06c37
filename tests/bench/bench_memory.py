"""Memory of ``vtcli rl`` over 200 steps, with a data set of 1 000 samples and with one of 100 000, images included.

python tests/bench/bench_memory.py                # prints a table; with 100 000 it takes about half an hour
python tests/bench/bench_memory.py 200 1000 5000  # steps, then sizes

The model has some hundred thousand parameters, so what is counted is what the loop itself needs: libraries (0.6 GB of
torch, transformers and DeepSpeed once imported), data set, caches, logs, sandbox-free rollouts and the optimiser.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import _support  # noqa: F401  # for tests/support
import tiny_model

from vtcli.families.qwen_vl import tiny

TASKS = ("rotflip", "zoom", "read_value", "count")
REWARD = "{_target_:uneven.reward,of:{_target_:vtcli.rewards.toolsrl.stage2}}"  # else random weights earn all the same
MARKS = (0.05, 0.25, 0.5, 1.0)  # shares of the run at which memory is told


def main(steps: str = "200", *sizes: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        _model(home)
        header = " | ".join(f"after step {max(1, round(int(steps) * share))}" for share in MARKS)
        print(f"| samples | MB on disk | {header} | last half's growth |\n|--:|--:|" + "--:|" * (len(MARKS) + 1))
        for size in sizes or ("1000", "100000"):
            print(_measured(home, int(size), int(steps)), flush=True)


def _model(home: Path) -> None:
    sizes = replace(tiny_model.SIZES, hidden_size=96, vocab_size=600, max_positions=4096)
    texts = [*tiny_model.TEXTS, "<answer>7</answer>", '<tool_call>{"name": "image_rotate_tool"}</tool_call>']
    tiny.build(home / "start", sizes, tiny.train_tokenizer(texts * 3, sizes.vocab_size), seed=3)


def _measured(home: Path, size: int, steps: int) -> str:
    counts = [f"data.tasks.{task}.{split}=2" for task in TASKS for split in ("train", "validation", "test")]
    _run(home, "synth", "+recipe=toolsrl", f"name=data-{size}", *counts, f"data.tasks.rotflip.train={size}").wait(7200)
    folder = home / f"data-{size}" / "v1"
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    phase = f"[{{name:a,steps:{steps},form:answer,reward:{REWARD}}}]"
    small = ("rl.prompts_per_step=8", "rl.group_size=4", "agent.limits.max_turn_tokens=16", "rl.checkpoint_every=50")
    more = ("+signals.sampled._target_=uneven.measure", f"rl.phases={phase}", f"rl.model={home / 'start'}")
    process = _run(home, "rl", "+recipe=toolsrl", f"name=policy-{size}", f"rl.data=data-{size}:v1", *small, *more)
    by_step: dict[int, float] = {}
    while process.poll() is None:
        done = _steps_done(home)
        if done:
            by_step[done] = max(by_step.get(done, 0.0), _resident_mb(process.pid))
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit((home / "log").read_text()[-3000:])
    seen = [_at(by_step, max(1, round(steps * share))) for share in MARKS]
    cells = " | ".join(f"{mb:.0f} MB" for mb in seen)
    return f"| {size} | {disk:.0f} | {cells} | {seen[-1] - _at(by_step, steps // 2):+.0f} MB |"


def _steps_done(home: Path) -> int:
    """Lines of the running stage's log, whose folder moves when the stage ends; never a walk over 100 000 images."""
    try:
        return sum(1 for log in home.glob(".work/rl-*/metrics.jsonl") for _ in log.open())
    except OSError:
        return 0


def _at(by_step: dict[int, float], step: int) -> float:
    """The newest reading up to a step; the last step itself may be too short to be seen."""
    return by_step[max(s for s in by_step if s <= max(step, min(by_step)))]


def _resident_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it ended just now
        return 0.0
    lines = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(lines[0].split()[1]) / 1024 if lines else 0.0


def _run(home: Path, stage: str, *arguments: str) -> subprocess.Popen[bytes]:
    here = os.pathsep.join(
        [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    )  # for uneven.py
    argv = [sys.executable, "-m", "vtcli", stage, *arguments, "scale=tiny", "tracker=none", f"home={home}"]
    with (home / "log").open("ab") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": here})


if __name__ == "__main__":
    main(*sys.argv[1:])
