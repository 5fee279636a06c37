"""Runs every recipe at two seeds in two checkouts, and compares what was sampled, measured, rewarded and learnt.

    python tests/bench/same_bits.py BEFORE AFTER --work FOLDER [--recipes toolsrl codev] [--seeds 0 1]

BEFORE and AFTER are checkouts with an environment in ``.venv``. Each runs ``rl`` and ``eval`` at ``scale=tiny`` with a
few steps on the same data and model. Tokens, log-probabilities, signals, rewards and metrics but for times have to be
equal to the bit. Ends with exit code 1 where they are not, and names the first difference. Some minutes a recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECIPES = (
    *("toolsrl", "codev", "codevision", "codedance", "pyvision_image", "pyvision_video", "thyme", "mini_o3"),
    *("deepeyes", "grpo_accuracy", "grpo_consistency"),
)
FEW = ("rl.steps_per_phase=1", "rl.prompts_per_step=4", "rl.group_size=4", "rl.max_banned_mass=1")
FREE = ("time/", "memory/")  # metrics that are measured of the machine


def vtcli(checkout: Path, *words: str, home: Path) -> None:
    """Runs one command of a checkout. Raises ``CalledProcessError`` where it fails."""
    env = {**os.environ, "VTCLI_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    python = checkout / ".venv" / "bin" / "python"
    subprocess.run([python, "-m", "vtcli", *words], cwd=checkout, env=env, check=True, stdout=subprocess.DEVNULL)


def made(checkout: Path, home: Path, data: Path, recipe: str, seed: int) -> None:
    """Makes the model and the report of one recipe and seed below ``home``, where they are not there."""
    common = (f"+recipe={recipe}", "scale=tiny", f"seed={seed}", "tracker=none", "reuse=false", "make_missing=false")
    model = f"{recipe}-{seed}"
    if not (home / model).exists():
        of_rl = (f"rl.data={data}", "rl.model=base@latest", f"name={model}", "rl.allow_no_update=true", *FEW)
        vtcli(checkout, "rl", *common, *of_rl, home=home)
    if not (home / f"{model}-report").exists():
        of_eval = (f"eval.data={data}", f"eval.model={model}@latest", "eval.max_samples=6", f"name={model}-report")
        vtcli(checkout, "eval", *common, *of_eval, home=home)


def facts(home: Path, name: str) -> Iterator[tuple[str, Any]]:
    """What a run wrote that has to be the same: trajectories, and metrics without times."""
    folder = next((home / name).glob("v*"))
    for number, line in enumerate(folder.joinpath("trajectories.jsonl").read_text().splitlines()):
        yield f"trajectory {number}", json.loads(line)
    metrics = folder / "metrics.jsonl"
    for number, line in enumerate(metrics.read_text().splitlines() if metrics.exists() else ()):
        yield f"step {number}", {k: v for k, v in json.loads(line).items() if not k.startswith(FREE)}


def difference(before: Any, after: Any, where: str) -> str | None:
    """The first place at which two values differ; None for equal ones. Seconds of calls are left out."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after} - {"wall_s", "seconds"}):
            if found := difference(before.get(key), after.get(key), f"{where}.{key}"):
                return found
        return None
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return next((found for i, (a, b) in pairs if (found := difference(a, b, f"{where}[{i}]"))), None)
    return None if repr(before) == repr(after) else f"{where}: {before!r} and {after!r}"  # NaN is written as NaN


def main() -> int:
    """Prints a line for each recipe and seed, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    asked, wrong = parser.parse_args(), 0
    work = asked.work.resolve()
    for recipe in asked.recipes:
        data = work / "data" / f"data-{recipe}" / "v1"
        if not data.exists():
            words = ("scale=tiny", f"name=data-{recipe}", "tracker=none")
            vtcli(asked.before.resolve(), "synth", f"+recipe={recipe}", *words, home=work / "data")
        for seed in asked.seeds:
            homes = (work / "before", work / "after")
            for checkout, home in zip((asked.before, asked.after), homes, strict=True):
                made(checkout.resolve(), home, data, recipe, seed)
            for name in (f"{recipe}-{seed}", f"{recipe}-{seed}-report"):
                sides = [list(facts(home, name)) for home in homes]
                found = None if len(sides[0]) == len(sides[1]) else f"{len(sides[0])} and {len(sides[1])} lines"
                pairs = zip(*sides, strict=False)
                found = found or next((d for (at, a), (_, b) in pairs if (d := difference(a, b, at))), None)
                wrong += found is not None
                print(f"{name:<32} {len(sides[0]):>4} lines  {found or 'equal'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
