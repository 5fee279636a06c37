"""Runs the suites of `.ci/run` in lanes, and prints a table: suite, tests, clock and CPU seconds.

A suite is a target of the Makefile. It runs although another one failed, so that one run tells everything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TAIL = 25  # last lines of a suite, for the end of the output
YARDSTICK = """
import time
s = 0
for i in range(20_000_000): s += i
print(time.process_time())
"""


@dataclass(frozen=True)
class Suite:
    """What one target of the Makefile did."""

    name: str
    code: int
    clock_s: float
    cpu_s: float  # of all its processes that were waited for
    output: str

    @property
    def tests(self) -> int:
        """Sum of what pytest's closing lines count as passed."""
        return sum(int(n) for n in re.findall(r"(?:^|, )(\d+) passed", self.output, re.MULTILINE))


DONE: list[Suite] = []


def run(name: str) -> None:
    """Runs `make NAME` to its end, with its output in a file."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    command = ["make", name, f"PYTHON={sys.executable}", f"SLICE={head.strip()}"]
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    code = os.waitstatus_to_exitcode(status)
    suite = Suite(name, code, time.monotonic() - begin, usage.ru_utime + usage.ru_stime, text)
    DONE.append(suite)
    print(f"{name}: {'passed' if code == 0 else 'FAILED'}, {suite.clock_s:.0f} s", flush=True)
    if code != 0:  # at once: the run may be ended by its limit of time
        print(text, flush=True)


def main() -> int:
    """Runs everything; 1 where a suite failed."""
    begin = time.monotonic()
    run("setup")
    beside = ThreadPoolExecutor(2)
    # vLLM's environment, 4 GB, is made beside the first suites.
    vllm = beside.submit(run, "setup-vllm")
    run("check")
    run("test")  # in two processes
    # Then a core each. The environment of vLLM is there by now.
    slow = beside.submit(lambda: [run(name) for name in ("test-slow", "test-slurm", "test-slice")])
    run("test-attacks")
    vllm.result()
    run("test-vllm")
    slow.result()

    for suite in DONE:
        print(f"\n== {suite.name}", *suite.output.splitlines()[-TAIL:], sep="\n")
    yardstick = subprocess.run([sys.executable, "-c", YARDSTICK], capture_output=True, text=True, check=True).stdout
    print(f"\n20 M additions in a Python loop: {float(yardstick):.1f} CPU s here")
    print(f"{'suite':14} {'tests':>6} {'clock s':>8} {'CPU s':>8}")
    for suite in DONE:
        print(f"{suite.name:14} {suite.tests:6} {suite.clock_s:8.0f} {suite.cpu_s:8.0f}", "FAILED" * (suite.code != 0))
    total = sum(suite.cpu_s for suite in DONE)
    print(f"{'all':14} {sum(s.tests for s in DONE):6} {time.monotonic() - begin:8.0f} {total:8.0f}")
    failed = [suite.name for suite in DONE if suite.code != 0]
    print(f"{sum(suite.tests for suite in DONE)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
