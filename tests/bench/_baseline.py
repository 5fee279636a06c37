"""What ``mutants.py`` and ``undone.py`` share: a checkout of a commit, its tests of some rooms, results that resume.

The sample is drawn from the product code of one commit (``--drawn-from``) and tried on the tests of another
(``--commit``), so that two suites are compared on the same sample.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("vtcli/", "stages/")


def parser(description: str) -> argparse.ArgumentParser:
    """The options that both scripts have."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--commit", default="HEAD", help="the commit with the suite that is measured")
    found.add_argument("--drawn-from", default=None, help="the commit that the sample is drawn from; default: --commit")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--out", type=Path, required=True, help="JSONL file of results; lines that are there stay")
    found.add_argument("--limit-s", type=int, default=180, help="CPU seconds that one run of tests may take")
    found.add_argument("--budget-s", type=float, default=math.inf, help="CPU seconds of all runs; then the rest waits")
    found.add_argument("--again", type=Path, help="results of another run: only what its tests did not find")
    found.add_argument("--marks", default=None, help="pytest's -m, say 'slow or not slow'; default: as `make test`")
    found.add_argument("--table", action="store_true", help="print the table of --out and run nothing")
    return found


def git(*words: str, cwd: Path = ROOT, check: bool = True) -> str:
    return subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True, check=check).stdout


def product_files(commit: str) -> list[str]:
    """Python files of the product at a commit."""
    names = git("ls-tree", "-r", "--name-only", commit, "--", *PRODUCT).splitlines()
    return sorted(name for name in names if name.endswith(".py"))


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A worktree of a commit in a temporary folder, removed again afterwards."""
    with tempfile.TemporaryDirectory(prefix="vtcli-baseline-") as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


CONTRACTS = {
    "families": ("family",),
    "engines": ("policy", "learner"),
    "runs": ("tracker",),
    "judging": ("any_judge",),
    "data": ("importer", "exporter"),
}
"""Contracts of a room that is not called like its seam."""

HEAVY = re.compile(r"^(?:import|from) (?:torch|tiny_|stages|subprocess)", re.MULTILINE)
"""In tests that take long; the others come first."""


def room_tests(tree: Path, files: Iterable[str], first: Iterable[str] = ()) -> list[str]:
    """The tests of the rooms of some product files, those of ``first`` in front, then those that import a file."""
    modules = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in files}
    rooms = {module.split(".")[1] for module in modules if module.count(".")}
    rooms |= {"stages" for module in modules if module.startswith("stages.")}
    tests = tree / "tests"
    found = [path for room in rooms for path in tests.rglob("test_*.py") if room in path.relative_to(tests).parts[:-1]]
    for room in rooms:
        names = CONTRACTS.get(room, (room.removesuffix("s"),))
        found += [path for name in names if (path := tests / "contracts" / f"test_{name}.py").is_file()]
    text = {path: path.read_text() for path in found}
    words = [part for module in modules for part in (f"{module} ", f"{module}.", f"{module}\n")]
    words += [f"from {m.rpartition('.')[0]} import {m.rpartition('.')[2]}" for m in modules]
    near = {path for path in found if any(word in text[path] for word in words)}
    named = [tree / name for name in first if (tree / name).is_file()]
    # A stage's own tests are enough: those of all stages take minutes.
    far = {path for path in found if "stages" not in path.parts}
    order = [*named, *sorted(near, key=lambda path: (bool(HEAVY.search(text[path])), path)), *sorted(far - near)]
    return list(dict.fromkeys(str(path.relative_to(tree)) for path in order))


@dataclass(frozen=True)
class Tested:
    """``result``: "caught" with the first test that failed, "survived", "none" (no test), or "over the limit".
    ``seconds`` are of the CPU, so that a busy machine gives the same results."""

    result: str
    test: str
    seconds: float


PATIENCE = 20
"""A run that waits for nothing and computes nothing ends after so many times its limit by the clock."""


def run_tests(tree: Path, tests: Sequence[str], limit_s: int, marks: str | None) -> Tested:
    """Runs tests until one fails. Each of the processes may take ``limit_s`` seconds of the CPU."""
    if not tests:
        return Tested("none", "", 0.0)
    python = os.environ.get("VTCLI_PYTHON", sys.executable)
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [python, "-m", "pytest", *options, *(["-m", marks] if marks is not None else []), *tests]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    began = _cpu_s()
    process = subprocess.Popen(
        command, cwd=tree, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    # The soft limit alone: a test may give its own children more.
    hard = resource.prlimit(process.pid, resource.RLIMIT_CPU)[1]
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit_s, hard))
    try:
        output, _ = process.communicate(timeout=limit_s * PATIENCE)
    except subprocess.TimeoutExpired:
        output = ""
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the tests left behind, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    seconds = round(_cpu_s() - began, 1)
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Tested("over the limit", "", seconds)
    failed = [line.split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if process.returncode == NO_TESTS:
        return Tested("none", "", seconds)
    if process.returncode:
        return Tested("caught", failed[0] if failed else f"pytest ended with {process.returncode}", seconds)
    return Tested("survived", "", seconds)


NO_TESTS = 5
"""pytest's exit code if it collects nothing."""


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def known(out: Path) -> dict[str, dict[str, Any]]:
    """The results so far by their keys; a torn last line of a killed run is left out."""
    found: dict[str, dict[str, Any]] = {}
    for line in out.read_text().splitlines(keepends=True) if out.exists() else []:
        if line.endswith("\n"):
            row = json.loads(line)
            found[row["key"]] = row
    return found


def missed(again: Path | None) -> Callable[[str], bool]:
    """Whether a key is to be tried: all are, or those that the tests of another run did not find."""
    if again is None:
        return lambda key: True
    rows = known(again)
    return lambda key: key in rows and rows[key]["result"] != "caught"


def spent_s(out: Path) -> float:
    """CPU seconds of all runs so far."""
    return sum(row["seconds"] for row in known(out).values())


def add(out: Path, row: dict[str, Any]) -> None:
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def table(rows: Iterable[dict[str, Any]], column: str) -> str:
    """How many of each result, by a column, and in all."""
    rows = list(rows)
    results = ("caught", "over the limit", "survived", "none", "gone", "conflict")
    used = [result for result in results if any(row["result"] == result for row in rows)]
    lines = [f"| {column} | {' | '.join(used)} | in all |", f"|---|{'--:|' * (len(used) + 1)}"]
    for group in (*sorted({row[column] for row in rows}), None):
        own = [row for row in rows if group in (None, row[column])]
        counts = [sum(row["result"] == result for row in own) for result in used]
        lines.append(f"| {group or 'all'} | {' | '.join(map(str, counts))} | {len(own)} |")
    return "\n".join(lines)
