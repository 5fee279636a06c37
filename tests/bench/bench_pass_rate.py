"""Rollouts a second of ``vtcli filter`` with a pass rate, beside ``vtcli eval`` of the same questions, seeds and model.

    python tests/bench/bench_pass_rate.py 60 4       # questions, rollouts of each

Both run ToolsRL's world with the shipped tiny model on CPU, one after the other. CPU seconds of the whole command,
start included; the same command with one question of one rollout is the start alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BASE = next((Path(__file__).parents[2] / "vtcli" / "shipped" / "base").rglob("config.json")).parent
TASKS = ("rotflip", "zoom", "read_value", "count")


def run(home: Path, *arguments: str) -> tuple[float, float]:
    """CPU and wall seconds of one command."""
    command = [sys.executable, "-m", "vtcli", *arguments, "+recipe=toolsrl", "scale=tiny", "tracker=none", "memory=off"]
    start = time.monotonic()
    with (home.parent / "log").open("w") as log:
        process = subprocess.Popen([*command, f"home={home}"], stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{(home.parent / 'log').read_text()[-3000:]}")
    return used.ru_utime + used.ru_stime, time.monotonic() - start


def main(questions: str = "60", rollouts: str = "4") -> None:
    print("| command | rollouts | CPU s | of it start | rollouts/CPU s | wall s |\n|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        for size in (len(TASKS), int(questions)):
            counts = [f"data.tasks.{task}.{split}=1" for task in TASKS for split in ("validation", "test")]
            counts += [f"data.tasks.{task}.train={size // len(TASKS)}" for task in TASKS]
            run(home, "synth", f"name=data{size}", *counts)
        starts: dict[str, float] = {}
        for size, k in ((len(TASKS), 1), (int(questions), int(rollouts))):
            data = f"data=data{size}:v1"
            sampled = ["filter.agent.sampling.temperature=1.0", f"filter.rollouts.group_size={k}"]
            keep = ["filter=rows", "~filter.rules", "+filter.rules.all._target_=vtcli.filters.pass_rate.band"]
            asked = ["eval.forms=[answer]", "eval.split=train", f"eval.group_size={k}"]
            asked += ["eval.agent.sampling.temperature=1.0"]
            found = {
                "filter": run(home, "filter", data, f"model={BASE}", f"name=f{size}", *keep, *sampled),
                "eval": run(home, "eval", data, f"model={BASE}", f"name=e{size}", *asked),
            }
            if k == int(rollouts):
                said = json.loads((home / f"f{size}" / "v1" / "filter.json").read_text())["pass_rate"]
                made = sum(said["outcomes"].values())
                for stage, (cpu, wall) in found.items():
                    rate = f"{made / (cpu - starts[stage]):.1f}"
                    print(f"| `vtcli {stage}` | {made} | {cpu:.0f} | {starts[stage]:.0f} | {rate} | {wall:.0f} |")
            starts = {stage: cpu for stage, (cpu, _) in found.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
