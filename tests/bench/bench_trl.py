"""Optimiser steps beside TRL's: seconds of GRPO and SFT steps, in turns; losses and gradients of the same rows.

python tests/bench/bench_trl.py                             # prints; five turns of six steps each, half an hour
python tests/bench/bench_trl.py --write docs/benchmarks.md  # and puts the tables between that page's marks

Needs TRL (``pip install trl==1.16.0``) beside what ``make setup-vllm`` installs: TRL's processor wants torchvision.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from marked_page import marked

TURNS, STEPS = 5, 6
SIDES = {"grpo": ("vtcli", "TRL"), "sft": ("vtcli packed", "vtcli unpacked", "TRL")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--steps", type=int, default=STEPS, help="a turn, the first of which is not counted")
    parser.add_argument("--write", type=marked("trl"))
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(_side(*given.side, given.folder, given.steps)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        same = _asked(folder, "same", "grpo", 1)
        text = "\n\n".join([_same(same), *(_compared(kind, folder, given.turns, given.steps) for kind in SIDES)])
    text = f"{_machine()}\n\n{text}"
    print(text)
    if given.write:
        given.write.write(text)


def _side(kind: str, side: str, folder: Path, steps: int) -> dict[str, Any]:
    """In a process of its own: nothing of one side is warm or in memory for the other."""
    import bench_trl_sides as sides
    from bench_trl_same import same_loss
    from bench_trl_world import World

    world = World.make(folder)
    out = folder / "out"
    if kind == "same":
        return same_loss(world, out)
    if kind == "grpo":
        return sides.grpo_ours(world, steps) if side == "vtcli" else {"step": sides.timed(_trainer(world, steps, out))}
    if side == "TRL":
        return {"step": sides.timed(sides.sft_trainer(world, steps, out))}
    return sides.sft_ours(world, steps, "one" if side == "vtcli unpacked" else "packed")


def _trainer(world: Any, steps: int, out: Path) -> Any:
    from bench_trl_sides import grpo_trainer

    return grpo_trainer(world, steps, out)


def _asked(folder: Path, kind: str, side: str, steps: int) -> dict[str, Any]:
    argv = [sys.executable, __file__, "--side", kind, side, "--folder", str(folder), "--steps", str(steps)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _compared(kind: str, folder: Path, turns: int, steps: int) -> str:
    """The sides take turns; a share compares medians of the same turn."""
    medians: dict[str, list[float]] = {side: [] for side in SIDES[kind]}
    parts: dict[str, list[float]] = {}
    for turn in range(turns):
        order = SIDES[kind] if turn % 2 == 0 else SIDES[kind][::-1]
        for side in order:
            found = _asked(folder, kind, side, steps)
            medians[side].append(statistics.median(found["step"][1:]))
            print(f"{kind}, turn {turn + 1} of {turns}, {side}: {medians[side][-1]:.2f} s a step", file=sys.stderr)
            if side == "vtcli":
                for name in ("rollout", "learn", "rest", "tokens"):
                    parts.setdefault(name, []).extend(found[name][1:])
            elif side == "vtcli packed":
                parts.setdefault("tokens", []).extend(found["tokens"][1:])
    lines = [f"| {kind.upper()} | s a step | tokens/s | its speed / TRL's |", "|---|--:|--:|--:|"]
    tokens = statistics.mean(parts["tokens"])
    for side, values in medians.items():
        ratios = [theirs / own for theirs, own in zip(medians["TRL"], values, strict=True)]
        speed = "1" if side == "TRL" else f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        middle = statistics.median(values)
        lines.append(
            f"| {side} | {middle:.2f} [{min(values):.2f}, {max(values):.2f}] | {tokens / middle:.0f} | {speed} |"
        )
    if kind == "grpo":
        shares = ", ".join(f"{name} {statistics.median(parts[name]):.2f} s" for name in ("rollout", "learn", "rest"))
        lines += ["", f"Where vtcli's step goes: {shares}. Tokens are those that the policy wrote."]
    return "\n".join(lines)


def _same(found: dict[str, Any]) -> str:
    gap = abs(found["ours"] - found["theirs"])
    return (
        f"Same {found['rows']} rows, a share of {found['clipped']:.2f} of their tokens outside of the clipping range.\n"
        f"Losses: {found['ours']:.8f}, TRL's {found['theirs']:.8f}, difference {gap:.1e}.\n"
        f"Gradients differ by at most {found['gradient']:.1e} of the largest entry of their tensor."
    )


def _machine() -> str:
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}; load averages {load}."
    )


if __name__ == "__main__":
    main()
