"""Seconds in which 10 000 stored answers are scored under each benchmark's rule, figures and intervals included.

python tests/bench/bench_rules.py           # a line for each benchmark, one core
python tests/bench/bench_rules.py 10000 chartqa mathvision

The rows are the miniatures of the tests, in the benchmarks' public formats. Every second answer is the right one, the
others are numbers, words and formulas that differ from row to row.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import _support  # noqa: F401  # for tests/support
from benchmark_copies import shipped
from benchmark_rows import MINIATURES, Miniature
from fakes import make_trajectory

from vtcli.benchmarks import results
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.benchmarks.samples import RowChoice, load
from vtcli.schema import Sample, Scored, Signals
from vtcli.store.images import ImageStore

SETTING = results.RunSetting("policy", results.ORACLE, "T 0")
WRONG = ("{0}", "the answer is {0}", "\\frac{{{0}}}{{7}}", "about {0} per cent, as the legend says", "{0}, {1}")


def main(count: str = "10000", *names: str) -> None:
    sys.stdout.write("| benchmark | rules | s |\n|---|---|--:|\n")
    benchmarks = shipped()
    for name in names or sorted({one.name for one in MINIATURES}):
        miniature = next(one for one in MINIATURES if one.name == name)
        with tempfile.TemporaryDirectory() as folder:
            samples = _samples(Path(folder), miniature, benchmarks[name])
        found = [_answered(samples[k % len(samples)], k, miniature) for k in range(int(count))]
        begin = time.perf_counter()
        results.result(name, benchmarks[name], found, SETTING, seed=0)
        seconds = time.perf_counter() - begin
        sys.stdout.write(f"| {name} | {' '.join(benchmarks[name].scores)} | {seconds:.1f} |\n")
        sys.stdout.flush()


def _samples(folder: Path, miniature: Miniature, benchmark: Benchmark) -> list[Sample]:
    miniature.write(folder / miniature.name)
    return list(load(folder, miniature.name, benchmark, ImageStore(folder / "store"), RowChoice()))


def _answered(sample: Sample, k: int, miniature: Miniature) -> Scored:
    text = miniature.right if k % 2 else WRONG[k // 2 % len(WRONG)].format(k, k + 1)
    own = replace(sample, id=f"{sample.id}-{k}")
    return Scored(make_trajectory(own, [f"<answer>{text}</answer>"]), Signals({}), None)


if __name__ == "__main__":
    main(*sys.argv[1:])
