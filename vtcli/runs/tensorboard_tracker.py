"""TensorBoard as a tracker: ``tensorboard --logdir <home>/tensorboard``."""

from __future__ import annotations

import importlib.util
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vtcli.errors import ConfigError
from vtcli.protocols import Tracker
from vtcli.runs.track import Context, QuietTracker


def tracker(context: Context) -> Tracker:
    """Returns the tracker of a run, in the folder of ``context.run_id`` if an attempt began it.

    Raises:
        ConfigError: tensorboard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("tracker=tensorboard needs a package that is not here: pip install 'vtcli[tensorboard]'")
    return TensorboardTracker(context)


class TensorboardTracker(QuietTracker):
    """Event files of one run. Its id is the name of its folder."""

    service = "TensorBoard"

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._writer: Any = None
        self.attempt("open its files", lambda: self._open(context))

    def _open(self, context: Context) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds

        run_id = context.run_id or f"{context.stage}-{context.name}-{secrets.token_hex(4)}"
        self._writer = SummaryWriter(str(context.home / "tensorboard" / run_id))
        self.run_id: str | None = run_id

    def params(self, values: Mapping[str, Any]) -> None:
        """Writes the configuration as a text."""
        text = "    " + json.dumps(values, indent=1, default=str).replace("\n", "\n    ")
        self.attempt("log parameters", lambda: self._writer.add_text("config", text))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Writes one scalar each."""

        def write() -> None:
            for key, value in values.items():
                self._writer.add_scalar(key, value, step)

        self.attempt("log metrics", write)

    def inputs(self, artifacts: Sequence[Mapping[str, Any]], context: str) -> None:
        """Writes the parents as a text."""
        text = "\n".join(f"- {artifact['ref']} {artifact['digest']}" for artifact in artifacts)
        self.attempt("log inputs", lambda: self._writer.add_text("inputs", text))

    def tags(self, values: Mapping[str, str]) -> None:
        """Writes one text each."""

        def write() -> None:
            for key, value in values.items():
                self._writer.add_text(key, value)

        self.attempt("set tags", write)

    def rollouts(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Writes texts as a list, with images beside them."""

        def write() -> None:
            for number, row in enumerate(rows):
                said = {key: value for key, value in row.items() if not isinstance(value, Path)}
                self._writer.add_text(f"rollouts/{number}", "\n".join(f"- {k}: {v}" for k, v in said.items()), step)
                for key, value in row.items():
                    if isinstance(value, Path):
                        pixels = np.asarray(Image.open(value).convert("RGB"))
                        self._writer.add_image(f"rollouts/{number}/{key}", pixels, step, dataformats="HWC")

        self.attempt("log trajectories", write)

    def close(self, status: str = "FINISHED") -> None:
        """Writes the run's status as a text, and everything that waits."""

        def write() -> None:
            self._writer.add_text("status", status)
            self._writer.close()

        self.attempt("close its files", write)
