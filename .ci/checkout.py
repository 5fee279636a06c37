"""The files that rules read, and what a rule finds in them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Violation(NamedTuple):
    """One breach of a rule."""

    place: str  # file, or file:line
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class Tree:
    """The files that rules read, each read and parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    @cached_property
    def pages(self) -> list[Path]:
        """README, CHANGELOG and docs."""
        top = [path for path in (self.root / "README.md", self.root / "CHANGELOG.md") if path.exists()]
        return [*top, *sorted((self.root / "docs").rglob("*.md"))]

    @cached_property
    def modules(self) -> list[Path]:
        """Files of the package and its stages."""
        return sorted(path for room in ("vtcli", "stages") for path in (self.root / room).rglob("*.py"))

    @cache  # noqa: B019  one tree a process
    def text(self, path: Path) -> str:
        return path.read_text()

    @cache  # noqa: B019
    def parsed(self, path: Path) -> ast.Module:
        return ast.parse(self.text(path))

    def at(self, path: Path, position: int) -> str:
        """The place of a position in a file's text."""
        return f"{self.name(path)}:{self.text(path).count(chr(10), 0, position) + 1}"

    def lines(self, path: Path) -> Iterator[tuple[str, str]]:
        """Each line of a file with its place."""
        for number, line in enumerate(self.text(path).splitlines(), 1):
            yield f"{self.name(path)}:{number}", line


Rule = Callable[[Tree], Iterator[Violation]]
"""A generator of violations."""
