"""Trackers of parameters, metrics and links between runs: MLflow, the console, none, or several at once. They never
raise into a run. W&B and TensorBoard have separate files beside this one.

MLflow: ``sqlite:///<home>/mlflow.db`` unless ``MLFLOW_TRACKING_URI`` is set; ``MLFLOW_EXPERIMENT_NAME`` names the
experiment (else "vtcli") and ``MLFLOW_RUN_ID`` attaches to a run. One process at a time makes a fresh database, because
two concurrent migrations break, and under another name, because MLflow never opens a database whose migration was
interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vtcli.errors import ConfigError
from vtcli.foreign import print_line
from vtcli.protocols import Tracker
from vtcli.store import codec, disk

EXPERIMENT = "vtcli"
INIT_WAIT_S = 120.0
"""The first migration takes about 4 s, so many processes may wait in line."""

MAX_VALUE_CHARS = 500
"""Longer parameters are clipped, because servers reject them; the whole config is an artifact of the run."""

MAX_FAILURES = 3
"""Failures in a row after which a tracker pauses, so that a dead server costs seconds and not the run's time."""

PAUSE_S = 300.0
"""Length of the pause. Each further failure begins another one."""

HANGS_S = 5.0
"""A failed call that took this long hit a server that hangs: one is enough for a pause."""

FLUSH_S = 2.0
"""Time that metrics wait to share a call. A kill loses them here, but ``metrics.jsonl`` has them all."""

MAX_WAITING = 2000
"""Calls with metrics that wait for an absent server; beyond this number the oldest are dropped."""

_PARAMS_PER_CALL, _METRICS_PER_CALL = 100, 1000  # MLflow's limits of one log_batch
_DIGEST_CHARS = 36  # MLflow's column
_FORBIDDEN = re.compile(r"[^\w\-. /:]")
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Context:
    """Facts of a run for its tracker. ``run_id`` is the tracker's run of an earlier, interrupted attempt."""

    home: Path
    stage: str
    name: str
    run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


# Plug points, see conf/tracker: each makes a Tracker from a Context.


def mlflow(context: Context) -> Tracker:
    """Opens MLflow; logs one warning if it cannot be reached, and the run goes on without."""
    return MlflowTracker(context)


def console(context: Context) -> Tracker:
    """Prints metrics as lines on standard error."""
    return ConsoleTracker(context)


def null(context: Context) -> Tracker:
    """Keeps nothing."""
    del context
    return NullTracker()


class NullTracker:
    """A tracker for tests, and for all ranks but the first."""

    run_id: str | None = None

    def params(self, values: Mapping[str, Any]) -> None:
        """Dropped."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Dropped."""

    def inputs(self, artifacts: Sequence[Mapping[str, Any]], context: str) -> None:
        """Dropped."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Dropped."""

    def rollouts(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Dropped."""

    def file(self, path: str) -> None:
        """Dropped."""

    def close(self, status: str = "FINISHED") -> None:
        """Does nothing."""


class QuietTracker(NullTracker):
    """Base of trackers over a service's library: turns its errors into warnings. Gives up a service that does not open,
    or fails ``MAX_FAILURES`` times in a row, for the rest of the run."""

    service: str

    def __init__(self) -> None:
        self._failures = 0

    def attempt(self, doing: str, work: Callable[[], Any]) -> None:
        """Calls ``work`` unless the service was given up."""
        if self._failures >= MAX_FAILURES:
            return
        try:
            work()
        except Exception as error:  # of whatever type: no service may end a run
            self._failures = self._failures + 1 if self.run_id is not None else MAX_FAILURES
            given_up = " The run goes on without it." if self._failures >= MAX_FAILURES else ""
            _log.warning("%s: cannot %s (%s).%s", self.service, doing, _brief(error), given_up)
        else:
            self._failures = 0


class SeveralTrackers:
    """Several trackers at once, by the names of their configurations. ``run_id`` is ``mlflow:ID wandb:ID``, or the bare
    id if only one tracker has any."""

    def __init__(self, context: Context, makers: Mapping[str, Callable[[Context], Tracker]]) -> None:
        earlier = run_ids(context.run_id, tuple(makers))
        self._of: dict[str, Tracker] = {}
        try:
            for name, make in makers.items():
                self._of[name] = make(replace(context, run_id=earlier.get(name)))
        except BaseException:  # an interrupt, or a package that is missing
            self.close("KILLED")
            raise
        ids = {name: tracker.run_id for name, tracker in self._of.items() if tracker.run_id}
        several = " ".join(f"{name}:{run_id}" for name, run_id in ids.items())
        self.run_id: str | None = several if len(ids) > 1 else next(iter(ids.values()), None)

    def params(self, values: Mapping[str, Any]) -> None:
        """Passed on to each."""
        for tracker in self._of.values():
            tracker.params(values)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Passed on to each."""
        for tracker in self._of.values():
            tracker.metrics(values, step)

    def inputs(self, artifacts: Sequence[Mapping[str, Any]], context: str) -> None:
        """Passed on to each."""
        for tracker in self._of.values():
            tracker.inputs(artifacts, context)

    def tags(self, values: Mapping[str, str]) -> None:
        """Passed on to each."""
        for tracker in self._of.values():
            tracker.tags(values)

    def rollouts(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Passed on to each that shows trajectories; one from outside need not."""
        for tracker in self._of.values():
            if hasattr(tracker, "rollouts"):
                tracker.rollouts(rows, step)

    def file(self, path: str) -> None:
        """Passed on to each."""
        for tracker in self._of.values():
            tracker.file(path)

    def close(self, status: str = "FINISHED") -> None:
        """Passed on to each."""
        for tracker in self._of.values():
            tracker.close(status)


def run_ids(text: str | None, names: Sequence[str]) -> dict[str, str]:
    """Returns each tracker's run from the text of ``SeveralTrackers.run_id``; a bare id belongs to the first.

    >>> run_ids("mlflow:a1 wandb:b2", ["mlflow", "wandb"]), run_ids("a1", ["mlflow", "console"])
    ({'mlflow': 'a1', 'wandb': 'b2'}, {'mlflow': 'a1'})
    """
    if not text:
        return {}
    if " " not in text:
        return dict.fromkeys(names[:1], text)
    return dict(each.split(":", 1) for each in text.split())


class ConsoleTracker(NullTracker):
    """Prints one line of metrics a step, at most one a second, and the parents and the end."""

    def __init__(self, context: Context, every_s: float = 1.0) -> None:
        self._label = f"{context.stage} {context.name}"
        self._every_s = every_s
        self._last = float("-inf")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Prints ``rl NAME step 3  loss 0.25  reward 0.5``."""
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            self._say(f"step {step}  " + "  ".join(f"{key} {value:.4g}" for key, value in values.items()))

    def inputs(self, artifacts: Sequence[Mapping[str, Any]], context: str) -> None:
        """Prints the parents' names."""
        self._say(f"{context} from " + ", ".join(str(artifact["ref"]) for artifact in artifacts))

    def close(self, status: str = "FINISHED") -> None:
        """Reports the final status of the run."""
        self._say(status.lower())

    def _say(self, text: str) -> None:
        try:
            print_line(f"{self._label}  {text}")
        except (OSError, ValueError):  # standard error may be closed
            return


class MlflowTracker:
    """One MLflow run, opened at once; continues ``context.run_id`` if that still exists.

    Uses a separate client and leaves MLflow's global active run alone. Counts failures and warns once. After
    ``MAX_FAILURES`` in a row it sends nothing for ``PAUSE_S``, but keeps metrics. Without a run everything is lost.
    """

    def __init__(self, context: Context) -> None:
        self.run_id: str | None = None
        self.uri = tracking_uri(context.home)
        self._context = context
        self._lost = 0
        self._warned = False
        self._failures = 0  # in a row
        self._next = float("-inf")  # time from which calls are sent again
        self._client: Any = None
        self._waiting: deque[list[Any]] = deque(maxlen=MAX_WAITING)  # MLflow's metrics of each call
        self._flushed = float("-inf")
        try:
            self._lost += not self._tried("open a run", self._open)
        except BaseException:  # an interrupt
            if self.run_id is not None:
                self.close("KILLED")
            raise

    def params(self, values: Mapping[str, Any]) -> None:
        """Logs values flattened to ``a.b.c`` and clipped, and whole as the artifact ``config.json``; known ones
        stay."""
        self._quietly("log parameters", lambda: self._params(values))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Sends metrics in batches, at most every ``FLUSH_S`` seconds, because a call to SQLite takes 15 ms and
        more."""
        if self.run_id is None:
            self._lost += 1
            return
        try:
            rows = _rows(values, step)
        except (TypeError, ValueError) as error:  # a value that is not a number
            self._failed("log metrics", error)
            self._lost += 1
            return
        self._lost += len(self._waiting) == MAX_WAITING
        self._waiting.append(rows)
        now = time.monotonic()
        if now >= self._next and now - self._flushed >= FLUSH_S:
            self._tried("log metrics", self._flush)

    def inputs(self, artifacts: Sequence[Mapping[str, Any]], context: str) -> None:
        """Logs parents (``ref, kind, digest, path, run_id``): data as dataset inputs, all of them as tags."""
        self._quietly("log inputs", lambda: self._inputs(artifacts, context))

    def tags(self, values: Mapping[str, str]) -> None:
        """Sets or replaces tags."""
        self._quietly("set tags", lambda: self._tags(values))

    def rollouts(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Drops them: the artifact has all trajectories, and ``vtcli view`` shows them."""

    def file(self, path: str) -> None:
        """Copies a file to the run's artifacts."""
        self._quietly(f"log the file {path}", lambda: self._client.log_artifact(self.run_id, path))

    def close(self, status: str = "FINISHED") -> None:
        """Ends the run as FINISHED, FAILED or KILLED. Tries also in a pause, because a server that is back would
        otherwise show the run as running for ever."""
        ended = False
        if self.run_id is not None:
            if self._waiting:
                self._tried("log metrics", self._flush)
            ended = self._tried("end the run", lambda: self._client.set_terminated(self.run_id, status))
        self._lost += len(self._waiting) + (not ended)
        if self._lost:
            _log.warning("MLflow at %s: %d calls were lost; the run itself is complete.", self.uri, self._lost)

    def _quietly(self, doing: str, work: Callable[[], Any]) -> None:
        possible = self.run_id is not None and time.monotonic() >= self._next
        self._lost += not (possible and self._tried(doing, work))

    def _tried(self, doing: str, work: Callable[[], Any]) -> bool:
        begin = time.monotonic()
        try:
            work()
        except Exception as error:  # of whatever type: no library below MLflow may end a run
            self._failed(doing, error)
            self._failures += 1
            if self._failures >= MAX_FAILURES or time.monotonic() - begin >= HANGS_S:
                self._next = time.monotonic() + PAUSE_S
            return False
        self._failures = 0
        return True

    def _failed(self, doing: str, error: Exception) -> None:
        if not self._warned:
            _log.warning("MLflow at %s: cannot %s (%s). The run goes on without.", self.uri, doing, _brief(error))
        self._warned = True

    def _open(self) -> None:
        own = not os.environ.get("MLFLOW_TRACKING_URI")
        files = (self._context.home / "mlruns").absolute().as_uri() if own else None
        self._client = _client(self.uri)
        given = os.environ.get("MLFLOW_RUN_ID")
        if given:
            self._client.get_run(given)  # raises for an unknown id, because the user expects that very run
            self.run_id = given
        elif self._context.run_id and self._goes_on(self._context.run_id, files):
            self.run_id = self._context.run_id
        if self.run_id:
            self._client.update_run(self.run_id, status="RUNNING")
        else:
            self.run_id = self._create(files)
        self._tags(self._context.tags)

    def _goes_on(self, run_id: str, files: str | None) -> bool:
        """Returns True if an earlier attempt's run exists and keeps its files in this home."""
        from mlflow.exceptions import MlflowException

        try:
            info = self._client.get_run(run_id).info
        except MlflowException:
            return False
        here = files is None or str(info.artifact_uri).startswith(f"{files}/")
        return info.lifecycle_stage == "active" and here

    def _create(self, files: str | None) -> str:
        """Creates a run. A home that was copied or moved gets a separate experiment, because MLflow keeps absolute
        locations and the run would write into the old home."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        experiment = self._experiment(name, files)
        if files is not None and experiment.artifact_location != files:
            experiment = self._experiment(f"{name} in {self._context.home.absolute()}", files)
        tags = {"mlflow.source.name": f"vtcli {self._context.stage}", "vtcli.stage": self._context.stage}
        run_name = f"{self._context.stage} {self._context.name}"
        return self._client.create_run(experiment.experiment_id, run_name=run_name, tags=tags).info.run_id

    def _experiment(self, name: str, files: str | None) -> Any:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage != "active":  # deleted, and its name stays taken
                _log.warning("MLflow at %s: the experiment %s was deleted and is restored.", self.uri, name)
                self._client.restore_experiment(found.experiment_id)
            return found
        try:
            return self._client.get_experiment(self._client.create_experiment(name, files))
        except MlflowException:  # another process created it first
            return self._client.get_experiment_by_name(name)

    def _params(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # MLflow refuses a parameter that changes, so a continued run logs only new ones.
        known = self._client.get_run(self.run_id).data.params
        flat = {_key(key): str(value) for key, value in flatten(values)}
        rows = [Param(key, clip(value)) for key, value in flat.items() if key not in known]
        for start in range(0, len(rows), _PARAMS_PER_CALL):
            self._client.log_batch(self.run_id, params=rows[start : start + _PARAMS_PER_CALL])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(codec.encode(values), indent=1, default=str))
            self._client.log_artifact(self.run_id, str(path))

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        rows = [row for call in self._waiting for row in call]
        for start in range(0, len(rows), _METRICS_PER_CALL):
            self._client.log_batch(self.run_id, metrics=rows[start : start + _METRICS_PER_CALL])
        self._waiting.clear()  # only now: a failed flush sends them again, and MLflow ignores duplicates

    def _inputs(self, artifacts: Sequence[Mapping[str, Any]], context: str) -> None:
        datasets = [_dataset_input(artifact, context) for artifact in artifacts if artifact["kind"] != "model"]
        if datasets:
            self._client.log_inputs(self.run_id, datasets=datasets)
        tags: dict[str, str] = {}
        for number, artifact in enumerate(artifacts):
            for name in ("ref", "kind", "digest", "run_id"):
                if artifact.get(name):
                    tags[f"vtcli.parent.{number}.{name}"] = str(artifact[name])
        self._tags(tags)

    def _tags(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        if values:
            self._client.log_batch(self.run_id, tags=[RunTag(_key(k), clip(str(v))) for k, v in values.items()])


def _rows(values: Mapping[str, float], step: int) -> list[Any]:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    return [Metric(_key(key), float(value), now, step) for key, value in values.items()]


def tracking_uri(home: Path) -> str:
    """Returns the address of the runs: ``MLFLOW_TRACKING_URI``, or the database in ``home``.

    Raises:
        ConfigError: SQLite has no address for the path of ``home``.
    """
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return uri
    file = (home / "mlflow.db").absolute()
    if sign := next((sign for sign in "%?" if sign in str(file)), None):
        raise ConfigError(
            f"MLflow cannot keep its database at {file}, because an address of SQLite gives {sign} a meaning. Choose "
            "another folder with VTCLI_HOME, a database with MLFLOW_TRACKING_URI, or tracker=console."
        )
    return f"sqlite:///{file}"


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ``("a.b", 1)`` for ``{"a": {"b": 1}}``; lists stay values."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def clip(value: str) -> str:
    """Clips a value to ``MAX_VALUE_CHARS`` characters, with an ellipsis at the cut."""
    return value if len(value) <= MAX_VALUE_CHARS else value[: MAX_VALUE_CHARS - 1] + "…"


def _client(uri: str) -> Any:
    """Returns a client with a ready store. Imports mlflow here, because that takes a second."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("alembic", "mlflow", "sqlalchemy"):  # they log tracebacks of errors that we report in one line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not uri.startswith("sqlite:"):
        return MlflowClient(tracking_uri=uri)
    file = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    with disk.locked(file.with_name(f".{file.name}.lock"), INIT_WAIT_S, "the start of MLflow's database"):
        if not file.exists() or file.stat().st_size == 0:
            _make_database(file)
        try:
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)  # migrates the tables of an older MLflow
        except Exception as error:
            raise UnreadableDatabase(_unreadable(file, error)) from error
        return client


class UnreadableDatabase(Exception):
    """MLflow cannot open its database. The message names the file and the remedy."""


def _unreadable(file: Path, error: Exception) -> str:
    text = str(error)
    # These causes pass or are outside of the file: moving it away would lose the runs for nothing.
    passing = ("locked", "disk I/O", "is full", "readonly", "read-only", "unable to open", "ermission")
    advice = (
        "" if any(word in text for word in passing) else f"; move it away and a new one is made: mv {file} {file}.old"
    )
    return f"{file} cannot be opened: {_brief(error)[:120]}{advice}"


def _make_database(file: Path) -> None:
    """Makes the tables under another name and moves the file into place. The caller holds the database's lock."""
    from mlflow import MlflowClient

    for leftover in file.parent.glob(f".{file.name}.*{disk.LEFTOVER}*"):  # left by killed processes
        leftover.unlink(missing_ok=True)
    with disk.replaced(file) as temp:
        MlflowClient(tracking_uri=f"sqlite:///{temp}").search_experiments(max_results=1)


def trial(home: Path) -> str:
    """Opens the runs of ``home`` and returns a line about them, for ``vtcli doctor``. Tries a database that does not
    exist yet in another folder, so that it leaves nothing behind.

    Raises any error of MLflow.
    """
    import mlflow as library

    uri = tracking_uri(home)
    file = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if uri.startswith("sqlite:") and not file.exists():
        with tempfile.TemporaryDirectory() as folder:
            _client(f"sqlite:///{folder}/mlflow.db")
        return f"{library.__version__}, will make {file}"
    found = _client(uri).search_experiments()
    if uri.startswith("sqlite:") and not os.access(file, os.W_OK):
        raise PermissionError(f"{file} cannot be written")
    return f"{library.__version__}, {len(found)} experiments at {uri}"


def _dataset_input(artifact: Mapping[str, Any], context: str) -> Any:
    """Builds the input that ``log_input(MetaDataset(...))`` stores, without MLflow's warning about ambiguous local
    paths."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"uri": str(artifact["path"])})
    entity = Dataset(str(artifact["ref"]), str(artifact["digest"])[:_DIGEST_CHARS], "local", source)
    return DatasetInput(entity, tags=[InputTag("mlflow.data.context", context)])


def _key(name: str) -> str:
    return _FORBIDDEN.sub("_", name)[:250]


def _brief(error: Exception) -> str:
    if isinstance(error, UnreadableDatabase):  # short already, and its advice is at the end
        return str(error)
    return f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
