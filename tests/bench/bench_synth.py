"""Renders items of a data configuration and prints items per second of one core, PNG encoding included.

python tests/bench/bench_synth.py conf/data/toolsrl_paper.yaml
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import yaml

from vtcli.config.binding import bind
from vtcli.data.generators import canvas

ITEMS = 100


def main(path: str = "conf/data/toolsrl_paper.yaml") -> None:
    tasks = yaml.safe_load(Path(path).read_text())["tasks"]
    for name, task in tasks.items():
        generate = bind(task["generate"], f"tasks.{name}.generate")
        generate(seed=0, item=0, split="test")  # loads the fonts
        start = time.process_time()
        size = sum(len(canvas.png(generate(seed=0, item=i, split="train").pixels)) for i in range(ITEMS))
        seconds = time.process_time() - start
        print(f"{name:<12} {ITEMS / seconds:7.1f} items/s of one core   {size / ITEMS / 1000:6.1f} kB a PNG")


if __name__ == "__main__":
    main(*sys.argv[1:])
