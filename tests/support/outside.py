"""The module of somebody else that fills every plug point, for the contracts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).parents[1] / "plugs" / "somebody.py"


def somebody() -> ModuleType:
    """``tests/plugs/somebody.py``, imported under its name."""
    if "somebody" not in sys.modules:
        spec = importlib.util.spec_from_file_location("somebody", PATH)
        assert spec and spec.loader
        sys.modules["somebody"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["somebody"]
