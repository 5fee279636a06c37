"""Weights & Biases as a tracker. Works offline without a key: ``wandb sync`` sends ``<home>/wandb`` later."""

from __future__ import annotations

import importlib.util
import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from vtcli.errors import ConfigError
from vtcli.protocols import Tracker
from vtcli.runs.track import Context, QuietTracker, flatten

PROJECT = "vtcli"
START_S = 30.0
"""Limit on opening a run, after which the stage goes on without."""


def tracker(context: Context) -> Tracker:
    """Returns the tracker of a run; continues ``context.run_id``.

    ``WANDB_PROJECT``, ``WANDB_ENTITY`` and ``WANDB_MODE`` have precedence.

    Raises:
        ConfigError: wandb is not installed.
    """
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError("tracker=wandb needs a package that is not here: pip install 'vtcli[wandb]'")
    return WandbTracker(context)


def mode(environ: Mapping[str, str] = os.environ) -> str:
    """Returns ``WANDB_MODE``, else online if a key is found, else offline."""
    if environ.get("WANDB_MODE"):
        return environ["WANDB_MODE"]
    host = urlparse(environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        logged_in = netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        logged_in = False
    return "online" if environ.get("WANDB_API_KEY") or logged_in else "offline"


class WandbTracker(QuietTracker):
    """One run of W&B. Metrics keep vtcli's step; trajectories become one table a step."""

    service = "W&B"

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._run: Any = None
        self.attempt("open a run", lambda: self._open(context))

    def _open(self, context: Context) -> None:
        import wandb

        folder = context.home.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=f"{context.stage} {context.name}",
            job_type=context.stage,
            id=context.run_id,
            resume="allow",
            mode=mode(),  # pyright: ignore[reportArgumentType]  wandb checks the value of WANDB_MODE
            dir=str(folder),
            tags=[f"{key}={value}"[:64] for key, value in context.tags.items()],
            settings=wandb.Settings(init_timeout=START_S, console="off", silent=True),
        )
        self.run_id: str | None = self._run.id

    def params(self, values: Mapping[str, Any]) -> None:
        """Stores the configuration, flat: ``rl.group_size``."""
        config = {key: value if isinstance(value, int | float | str | bool) else str(value)
                  for key, value in flatten(values)}  # fmt: skip
        self.attempt("log parameters", lambda: self._run.config.update(config, allow_val_change=True))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Sends them with vtcli's step as a separate axis, because a resumed run may repeat steps."""
        self.attempt("log metrics", lambda: self._run.log({**values, "step": step}))

    def inputs(self, artifacts: Sequence[Mapping[str, Any]], context: str) -> None:
        """Stores the parents in the run's configuration."""
        parents = {f"parent.{number}": f"{artifact['ref']} {artifact['digest']}" for number, artifact in
                   enumerate(artifacts)}  # fmt: skip
        self.attempt("log inputs", lambda: self._run.config.update(parents, allow_val_change=True))

    def tags(self, values: Mapping[str, str]) -> None:
        """Stores tags in the run's summary."""
        self.attempt("set tags", lambda: self._run.summary.update(dict(values)))

    def rollouts(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Logs a table with a column for each key; shows an image's path as the image."""
        self.attempt("log trajectories", lambda: self._table(rows, step))

    def _table(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        import wandb

        columns: list[Any] = list(rows[0])
        cells: list[Any] = [
            [wandb.Image(str(cell)) if isinstance(cell, Path) else cell for cell in row.values()] for row in rows
        ]
        self._run.log({"rollouts": wandb.Table(columns=columns, data=cells), "step": step})

    def file(self, path: str) -> None:
        """Keeps a file among the run's files."""
        self.attempt("log a file", lambda: self._run.save(path, base_path=str(Path(path).parent), policy="now"))

    def close(self, status: str = "FINISHED") -> None:
        """Ends the run; an exit code other than 0 marks it as failed."""
        self.attempt("end the run", lambda: self._run.finish(exit_code=int(status != "FINISHED")))
