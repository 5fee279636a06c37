"""Scores stored trajectories with ``vtcli judge`` and prints seconds and memory of the whole command.

python tests/bench/bench_judge.py            # 10 000 of a tiny run's size
python tests/bench/bench_judge.py 10000 300  # with 300 tokens a turn and a prompt of as many
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _support  # noqa: F401  # for tests/support
from fakes import make_sample, make_trajectory

from vtcli.schema import Completion, Scored, Signals, Trajectory
from vtcli.store import codec
from vtcli.store.images import ImageStore

GROUP = 8
GOOD, BAD = (("image_zoom_in_tool", {"image_idx": 0, "bbox_2d": box}) for box in ([20, 30, 60, 70], [0, 0, 10, 10]))


def main(count: str = "10000", tokens: str = "12") -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = _patterns(folder)
        for stored in (True, False):
            path = folder / f"{'signals' if stored else 'bare'}.jsonl"
            _write(path, made, int(count), int(tokens), stored)
            size = path.stat().st_size / 1e6
            print(f"{count} trajectories, {size:.0f} MB, {'signals stored' if stored else 'nothing measured yet'}")
            for argv in (["+recipe=toolsrl"], ["--all-recipes"]):
                print(f"  vtcli judge {argv[0]:<18} {_measured(path, argv, folder)}", flush=True)


def _patterns(folder: Path) -> list[Trajectory]:
    """Some trajectories of the real tools, right and wrong ones, in both forms."""
    store = ImageStore(folder / "images")
    endings = {"answer": ("<answer>K</answer>", "<answer>N</answer>"), "tool": ('<answer>"red tag": 1</answer>', "7")}
    return [
        make_trajectory(make_sample(store, form=form), texts, store)
        for form, (right, wrong) in endings.items()
        for texts in ([GOOD, right], [GOOD, wrong], [BAD, GOOD, right], [wrong])
    ]


def _write(path: Path, made: list[Trajectory], count: int, tokens: int, stored: bool) -> None:
    """Groups of eight, each of one question in one form; the lines differ in ids and are else the patterns'."""
    import asyncio

    import yaml

    from vtcli.config.binding import bind
    from vtcli.signals.measuring import SignalMeter

    nodes = yaml.safe_load((Path(__file__).parents[2] / "conf" / "signals" / "all.yaml").read_text())
    measure = SignalMeter([bind(node, key) for key, node in nodes.items()], None, ImageStore(path.parent), path.parent)
    signals = asyncio.run(measure(made))
    lines: list[dict[str, object]] = []
    for trajectory, values in zip(made, signals, strict=True):
        kept = values if stored else Signals({})
        value = codec.encode(Scored(trajectory, kept, None))
        value["trajectory"]["prompt_ids"] = list(range(tokens))
        for turn in value["trajectory"]["turns"]:
            if "completion" in turn:
                turn["completion"] = codec.encode(Completion(tuple(range(tokens)), (-0.123456789,) * tokens, "stop"))
            else:
                turn["token_ids"] = list(range(tokens))
        lines.append(value)
    with path.open("w") as file:
        for i in range(count):
            value = lines[(i // GROUP % 2) * 4 + i % 4]
            value["trajectory"] |= {"id": f"t{i}"}  # pyright: ignore
            value["trajectory"]["sample"] |= {"id": f"s{i // GROUP}"}  # pyright: ignore
            file.write(json.dumps({"schema_version": 1, "type": "Scored", "value": value}) + "\n")


def _measured(path: Path, argv: list[str], folder: Path) -> str:
    command = [sys.executable, "-m", "vtcli", "judge", str(path), *argv, "scale=tiny", "tracker=none"]
    environ = {**os.environ, "VTCLI_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, timeout=1800)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{wall:6.1f} s  {cpu:6.1f} s of CPU  at most {after.ru_maxrss / 1000:4.0f} MB so far"


if __name__ == "__main__":
    main(*sys.argv[1:])
