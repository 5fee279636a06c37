"""A family from outside that says its sizes to ``vtcli plan``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vtcli.families.qwen_vl.family import Qwen25VL
from vtcli.plan.architecture import KNOWN, Architecture


class OwnSizes(Qwen25VL):
    """Qwen2.5-VL-3B under another type."""

    @classmethod
    def planned(cls, folder: Path) -> Architecture:
        return replace(KNOWN["Qwen2.5-VL-3B"], name="mine")
