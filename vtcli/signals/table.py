"""The table of all signals, which `vtcli config signals` prints and the site shows."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

HEAD = ("| signal | what it is | measured by |", "|---|---|---|")


def lines() -> list[str]:
    """The lines of a Markdown table: each signal, what it is, and the module that measures it.

    Marks a module that needs a judge, and a value that counts only once the sandbox has done the code's
    operations again (``signals.claimed``).
    """
    return [*HEAD, *_rows()]


def _rows() -> Iterator[str]:
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"vtcli.signals.{found.name}")
        names: dict[str, str] = getattr(module, "NAMES", {})
        if not names:
            continue
        judge = inspect.signature(module.measure).parameters.get("judge")
        asks = "" if judge is None else ", a judge" if judge.default is judge.empty else ", a judge if there is one"
        for name, meaning in names.items():
            verified = " (verified)" if name in getattr(module, "CLAIMED", ()) else ""
            yield f"| `{name}` | {meaning}{verified} | `{found.name}`{asks} |"
