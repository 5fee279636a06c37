"""Puts ``tests/support`` on the path of a bench that is run by hand. It is imported before what it finds."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
