"""Result of a trial: one line of ``vtcli doctor --gpu``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from vtcli.foreign import load_json

State = Literal["ok", "slow", "broken", "absent"]


@dataclass(frozen=True)
class TrialResult:
    """A check with its figure, its verdict, and what to do unless it is ok."""

    check: str
    state: State
    figure: str
    advice: str = ""

    def line(self) -> str:
        """One line of JSON, which ``read`` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(line: str) -> TrialResult | None:
        """The outcome of a line, or None for any other line, which a library has printed."""
        try:
            return TrialResult(**load_json(line))
        except (ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Trial:
    """Settings of all trials."""

    folder: Path  # the model to try with
    cpu: bool  # with the miniature, although a GPU may be there

    @property
    def device(self) -> str:
        return "cpu" if self.cpu else "cuda"

    @property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        return "float32" if self.cpu else "bfloat16"
