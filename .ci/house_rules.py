"""Rules about names of files, types and docstrings of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from checkout import Rule, Tree, Violation

DIALECT = re.compile(
    r"\b(?:told|said|says|mend(?:s|ed|ing)?|one that|those that|what is|there is none|of its own)\b", re.IGNORECASE
)
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "misc", "common", "manager", "managers"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_of_files(tree: Tree) -> Iterator[Violation]:
    """No file or folder is called by a word that says nothing of what is in it."""
    for room in ("vtcli", "stages", "tests", "conf"):
        for path in sorted((tree.root / room).rglob("*")):
            if words := FORBIDDEN_NAMES & set(path.stem.lower().split("_")):
                yield Violation(tree.name(path), f"name it for what is in it, not {', '.join(words)}")


def names_of_test_files(tree: Tree) -> Iterator[Violation]:
    """A test file is found by its name alone."""
    found: dict[str, Path] = {}
    for path in sorted((tree.root / "tests").rglob("test_*.py")):
        if path.name in found:
            yield Violation(tree.name(path), f"{tree.name(found[path.name])} has this name as well")
        found.setdefault(path.name, path)


def public_docstrings(tree: Tree) -> Iterator[Violation]:
    """A public class, or a public function of more than ten lines, has a docstring."""
    for path in tree.modules:
        for node in tree.parsed(path).body:
            if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
                continue
            if ast.get_docstring(node) is not None or _is_protocol(node):
                continue
            if isinstance(node, ast.ClassDef) or (node.end_lineno or 0) - node.lineno >= 10:
                yield Violation(f"{tree.name(path)}:{node.lineno}", f"{node.name} is public and has no docstring")


def _is_protocol(node: ast.AST) -> bool:
    """A Protocol with only ``__call__`` may speak through its name and module."""
    return isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Protocol" for b in node.bases)


def names_of_types(tree: Tree) -> Iterator[Violation]:
    """No two public classes share a name, but each stage has its ``Config``."""
    found: dict[str, str] = {}
    for path in tree.modules:
        for node in ast.walk(tree.parsed(path)):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if node.name == "Config" and path.parent == tree.root / "stages":
                continue
            place = f"{tree.name(path)}:{node.lineno}"
            if node.name in found:
                yield Violation(place, f"{found[node.name]} has a type {node.name} as well")
            found.setdefault(node.name, place)


def imports_of_benches(tree: Tree) -> Iterator[Violation]:
    """A bench is run by hand, where tests/support is not on the path."""
    names = "|".join(path.stem for path in sorted((tree.root / "tests" / "support").glob("*.py")))
    takes = re.compile(rf"^(?:import|from) (?:{names})\b", re.MULTILINE)
    for path in sorted((tree.root / "tests" / "bench").glob("*.py")):
        text = tree.text(path)
        if names and (found := takes.search(text)) and "import _support" not in text:
            yield Violation(tree.at(path, found.start()), "a bench imports _support before tests/support's modules")


def tables_of_rich(tree: Tree) -> Iterator[Violation]:
    """One module prints tables, so that all look alike and break alike."""
    for path in tree.modules:
        if (position := tree.text(path).find("rich.table")) >= 0 and tree.name(path) != "vtcli/report/printing.py":
            yield Violation(tree.at(path, position), "print tables with vtcli.report.printing, not with rich.table")


_DIRECT = re.compile(r"\b(?:typer|click)\.echo\(|sys\.std(?:err|out)\.writes?(?:lines)?\(|traceback\.print_")
_PRINTERS = ("vtcli/sandbox/", "vtcli/foreign.py")
"""Files that may write to the terminal themselves; the sandbox prints in processes of its own."""


def prints(tree: Tree) -> Iterator[Violation]:
    """Text reaches the terminal by one function, because names, rows and errors may hold a terminal's escapes."""
    for path in tree.modules:
        if "scripts" in path.parts or tree.name(path).startswith(_PRINTERS):
            continue
        for found in _DIRECT.finditer(tree.text(path)):
            yield Violation(tree.at(path, found.start()), f"print with vtcli.foreign.print_line, not {found[0]}…")


_FRAGMENT = re.compile(r"(?:What|Where|Whether|How|Who|Which|Those)\b")
_RIDDLE = re.compile(r"\b(?:nobody|whom|anew)\b", re.IGNORECASE)


def _docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands as a statement, those under constants included."""
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def beginnings_of_docstrings(tree: Tree) -> Iterator[Violation]:
    """A docstring begins with a verb or a noun, and some words are not used at all."""
    for path in tree.modules:
        for line, text in _docstrings(tree.parsed(path)):
            first = text.strip().splitlines()[0] if text.strip() else ""
            if _FRAGMENT.match(first):
                yield Violation(f"{tree.name(path)}:{line}", f"begin this docstring with a verb or a noun: {first}")
            if found := _RIDDLE.search(text):
                yield Violation(f"{tree.name(path)}:{line}", f"use another word than {found[0]!r}: {first}")


def docstrings_of_rooms(tree: Tree) -> Iterator[Violation]:
    """Every room but the sandbox as a whole states what it may import and what it must not know."""
    for path in sorted((tree.root / "vtcli").rglob("__init__.py")):
        if path.parent.name in ("vtcli", "sandbox"):
            continue
        text = " ".join((ast.get_docstring(tree.parsed(path)) or "").split())
        if not re.search(r"\bimport", text):
            yield Violation(f"{tree.name(path)}:1", "the docstring does not state what the room may import")
        if not re.search(r"must not|\bknows? no(thing)?\b", text):
            yield Violation(f"{tree.name(path)}:1", "the docstring does not state what the room must not know")


def _messages(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every string within a ``raise``."""
    for statement in ast.walk(module):
        if isinstance(statement, ast.Raise) and statement.exc is not None:
            for node in ast.walk(statement.exc):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.lineno, node.value


def dialect(tree: Tree) -> Iterator[Violation]:
    """Words that a native writer would not use, in docstrings and error messages."""
    for path in tree.modules:
        module = tree.parsed(path)
        for line, text in (*_docstrings(module), *_messages(module)):
            words = [(found.start(), found[0]) for found in DIALECT.finditer(text)]
            for sentence in re.finditer(r"[^.;:!?]+", text):
                more = list(re.finditer(r"\bwhose\b", sentence[0], re.IGNORECASE))[1:]
                words += [(sentence.start() + found.start(), "whose, twice a sentence") for found in more]
            for position, word in words:
                yield Violation(f"{tree.name(path)}:{line + text.count(chr(10), 0, position)}", f"dialect: {word}")


RULES: tuple[Rule, ...] = (
    names_of_files,
    names_of_test_files,
    public_docstrings,
    names_of_types,
    imports_of_benches,
    tables_of_rich,
    prints,
    beginnings_of_docstrings,
    docstrings_of_rooms,
)
