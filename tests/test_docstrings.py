"""Every example in a docstring is run and prints what the docstring shows."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_example_prints_what_its_docstring_shows() -> None:
    files = [path for room in ("vtcli", "stages") for path in sorted((ROOT / room).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if ">>> " in path.read_text()]
    wrong: list[str] = []
    tried = 0
    for name in names:
        result = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")), report=False)
        tried += result.attempted
        wrong += [name] * result.failed
    assert tried >= 70 and wrong == []
