"""The house's budgets: how long a function or file may be, how many parameters it takes, and what it may not be called.

A budget is a reason to think, not to split a thought in two: what is over it stands here by name, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES, DRIVER_LINES, PARAMETERS, FILE_LINES = 60, 120, 6, 500
FORBIDDEN = {"utils", "util", "helpers", "helper", "misc", "common", "manager", "managers"}

DRIVERS: dict[str, str] = {
    "stages/rl.py::_train": "one step of RL reads like the design's table, from top to bottom",
}
"""``path::function`` -> why this one reads best in one piece; at most 120 lines."""

MANY_PARAMETERS: dict[str, str] = {
    "vtcli/cli/reproduce.py::reproduce": "options of a command line, which typer reads off the parameters",
    "vtcli/cli/maps/command.py::draw_map": "the same",
    "vtcli/judging/model.py::open_judge": "keyword-only, filled in by conf/judge",
    "vtcli/benchmarks/questions.py::generate": "keyword-only, filled in by conf/data",
    "vtcli/data/importers/rows.py::generate": "keyword-only, filled in by conf/data",
    "vtcli/engines/teachers/endpoint.py::card": "keyword-only, filled in by conf/teacher",
    "vtcli/algo/select.py::filter_and_rank": "keyword-only, filled in by conf/select",
    "vtcli/filters/contamination.py::against": "keyword-only, filled in by conf/filter",
    "vtcli/families/varlen.py::varlen_ref": "has the signature of torch's varlen_attn, for which it stands in",
    "vtcli/engines/learner/deepspeed.py::DeepSpeedLearner.__init__": "keyword-only, filled in by the stages",
}
"""``path::function`` -> why; keyword-only plug points that a config file fills, and signatures of others."""

FILES = sorted(p for room in ("vtcli", "stages", "tests") for p in (ROOT / room).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """``path::Class.function`` and its node, nested ones included."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | Function)
            if isinstance(child, Function):
                yield f"{path.relative_to(ROOT)}::{prefix}{child.name}", child
            yield from walk(child, f"{prefix}{child.name}." if named else prefix)

    yield from walk(ast.parse(path.read_text()), "")


def lines(node: Function) -> int:
    """From ``def`` to the last line, the docstring not counted: explaining is free."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def parameters(node: Function) -> list[str]:
    a = node.args
    named = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return [n for n in named if n not in ("self", "cls")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_keeps_its_budgets(path: Path) -> None:
    over: list[str] = []
    length = len(path.read_text().splitlines())
    if length > FILE_LINES:
        over.append(f"{path.relative_to(ROOT)}: {length} lines, at most {FILE_LINES}")
    for name, node in functions(path):
        limit = DRIVER_LINES if name in DRIVERS else FUNCTION_LINES
        if lines(node) > limit:
            over.append(f"{name}: {lines(node)} lines, at most {limit}")
        if len(parameters(node)) > PARAMETERS and name not in MANY_PARAMETERS and "tests/" not in name:
            over.append(f"{name}: {len(parameters(node))} parameters, at most {PARAMETERS}")
    assert not over, "\n".join(over)


def test_exemptions_are_still_needed() -> None:
    sizes = {name: (lines(node), len(parameters(node))) for path in FILES for name, node in functions(path)}
    stale = [n for n in DRIVERS if sizes.get(n, (0, 0))[0] <= FUNCTION_LINES]
    stale += [n for n in MANY_PARAMETERS if sizes.get(n, (0, 0))[1] <= PARAMETERS]
    assert not stale, f"no longer over budget, remove from the lists: {stale}"


def test_no_room_is_called_by_what_it_is_not() -> None:
    named = [p for room in ("vtcli", "stages", "tests", "conf") for p in (ROOT / room).rglob("*")]
    assert not [p for p in named if FORBIDDEN & set(p.stem.lower().split("_"))]


def test_test_files_have_unique_names() -> None:
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def test_what_is_public_and_not_obvious_is_explained() -> None:
    """A public class, or a public function of more than ten lines, has a docstring."""
    bare: list[str] = []
    for path in FILES:
        if "tests" in path.parts:
            continue
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_")
            if isinstance(node, Function) and lines(node) <= 10:
                continue
            if public and ast.get_docstring(node) is None and not _is_protocol(node):
                bare.append(f"{path.relative_to(ROOT)}::{node.name}")
    assert not bare, f"public, without a docstring: {bare}"


def _is_protocol(node: ast.AST) -> bool:
    """A Protocol with only ``__call__`` may speak through its name and module."""
    return isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Protocol" for b in node.bases)


STAGE_CONFIG = "Config"
"""Of every stage: ``stages/<stage>.py`` has one ``Config`` and one ``run``."""


def test_no_two_types_share_a_name() -> None:
    """Public classes of the package."""
    found: dict[str, list[str]] = {}
    for path in (p for p in FILES if p.is_relative_to(ROOT / "vtcli") or p.is_relative_to(ROOT / "stages")):
        place = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(place)
    found[STAGE_CONFIG] = [place for place in found[STAGE_CONFIG] if not place.startswith("stages/")]
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_a_bench_finds_what_it_takes_from_the_tests() -> None:
    """A bench is run by hand, where ``tests/support`` is not on the path."""
    names = "|".join(path.stem for path in (ROOT / "tests" / "support").glob("*.py"))
    takes = re.compile(rf"^(?:import|from) (?:{names})\b", re.MULTILINE)
    benches = {path.name: path.read_text() for path in (ROOT / "tests" / "bench").glob("*.py")}
    lost = [name for name, text in benches.items() if takes.search(text) and "import _support" not in text]
    assert not lost and sum(bool(takes.search(text)) for text in benches.values()) >= 8
