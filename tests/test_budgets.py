"""Rules of the house: names of files, docstrings of what is public, no two types of one name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {"utils", "util", "helpers", "helper", "misc", "common", "manager", "managers"}

FILES = sorted(p for room in ("vtcli", "stages", "tests") for p in (ROOT / room).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(node: Function) -> int:
    """From ``def`` to the last line, the docstring not counted: explaining is free."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


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


def test_text_reaches_the_terminal_by_one_function() -> None:
    """Names, rows and errors may hold a terminal's escapes; ``vtcli.foreign.print_line`` takes them out."""
    direct = re.compile(r"\b(?:typer|click)\.echo\(|sys\.std(?:err|out)\.writes?(?:lines)?\(|traceback\.print_")
    rooms = (path for path in FILES if "tests" not in path.parts and "scripts" not in path.parts)
    apart = ("vtcli/sandbox/", "vtcli/attacks/", "vtcli/foreign.py")  # the first two print in processes of their own
    names = [str(path.relative_to(ROOT)) for path in rooms if direct.search(path.read_text())]
    assert not [name for name in names if not name.startswith(apart)]


def test_a_bench_finds_what_it_takes_from_the_tests() -> None:
    """A bench is run by hand, where ``tests/support`` is not on the path."""
    names = "|".join(path.stem for path in (ROOT / "tests" / "support").glob("*.py"))
    takes = re.compile(rf"^(?:import|from) (?:{names})\b", re.MULTILINE)
    benches = {path.name: path.read_text() for path in (ROOT / "tests" / "bench").glob("*.py")}
    lost = [name for name, text in benches.items() if takes.search(text) and "import _support" not in text]
    assert not lost and sum(bool(takes.search(text)) for text in benches.values()) >= 8
