"""vLLM servers that we start: a process group each, on this host, that ends when we do, whatever ends us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vtcli
from vtcli.engines.learner.ranks import Circle
from vtcli.engines.policies import Engine
from vtcli.engines.vllm.servers.owner import GROUP, OWNER
from vtcli.errors import ConfigError, EngineError
from vtcli.families.table import ENVIRONMENT

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "VLLM_ENABLE_V1_MULTI")
"""A server is not a rank of the learner: variables that begin so are not handed on."""


@dataclass(frozen=True)
class ServerPlan:
    """Plan by which one of our servers is started, and restarted."""

    number: int
    settings: Mapping[str, Any]  # vLLM's engine arguments
    home: Path  # for its log
    key: str
    gpus: Sequence[str]  # as CUDA_VISIBLE_DEVICES names them; none: no matter which
    families: str = "{}"  # those that it must know beside ours, see ``families.table``

    @property
    def log(self) -> Path:
        """Log file of the server, over all its starts."""
        return self.home / f"server-{self.number}.log"


@dataclass(frozen=True)
class Child:
    """One start of a server."""

    plan: ServerPlan
    process: subprocess.Popen[bytes]
    port_file: Path

    def port(self) -> int | None:
        """Returns the server's port, or None until it is known.

        Raises:
            EngineError: it has ended.
        """
        if (status := self.process.poll()) is not None:
            raise EngineError(
                f"vLLM server {self.plan.number} ended while it started (status {status}); its last lines, of "
                f"{self.plan.log}:\n{last_lines(self.plan.log)}"
            )
        return int(self.port_file.read_text()) if self.port_file.exists() else None

    def signal(self, number: int) -> None:
        """Sends a signal to the server and all processes that it started."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass


def end(children: Sequence[Child], patience_s: float = 15.0) -> None:
    """Ends them, with all that they started; the ones that do not go by themselves in time are killed.

    Raises:
        EngineError: one cannot be ended.
    """
    for child in children:
        if patience_s > 0 and child.process.poll() is None:
            child.signal(signal.SIGTERM)
    until = time.monotonic() + patience_s
    for child in children:
        try:
            child.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        child.signal(signal.SIGKILL)  # and what the server has left behind
        try:
            child.process.wait(10)
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"vLLM server {child.plan.number} (process {child.process.pid}) cannot be ended"
            ) from error


def gpus_of(number: int, options: Engine, circle: Circle) -> list[str]:
    """The GPUs of our server ``number``: those of the node that ``engine.gpus`` names, or that the learner leaves over.

    Raises:
        ConfigError: there are not as many.
    """
    each = options.tensor_parallel
    try:
        mine = options.server_gpus(circle.local_world, circle.gpus)[number * each : (number + 1) * each]
    except ConfigError as error:
        if circle.gpus >= circle.local_world:
            raise
        raise ConfigError(
            f"engine.servers={options.servers}: each of the {circle.local_world} ranks of this node sees only "
            f"{circle.gpus} GPU(s), as by srun --gpus-per-task, so none is left for a server. Let every rank see all: "
            "--gpus-per-node"
        ) from error
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = shown.split(",") if shown else [str(n) for n in range(circle.gpus)]
    return [names[n] for n in mine]


def launch(plan: ServerPlan, port: int = 0) -> Child:
    """Starts a server; with ``port`` 0 it chooses one."""
    port_file = plan.home / f"server-{plan.number}-{time.monotonic_ns()}.port"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHED)}
    environ.pop(GROUP, None)
    environ |= {
        OWNER: str(os.getpid()),
        "VTCLI_SERVER_KEY": plan.key,
        "VTCLI_SERVER_SETTINGS": json.dumps({**plan.settings, "host": "127.0.0.1", "port": port}),
        "VTCLI_SERVER_PORT_FILE": str(port_file),
        ENVIRONMENT: plan.families,
        "PYTHONPATH": os.pathsep.join([str(Path(vtcli.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    if plan.gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpus)
    with plan.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vtcli.engines.vllm.servers.serve"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Child(plan, process, port_file)


def last_lines(log: Path, count: int = 6) -> str:
    """The end of a log with its last lines of text."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    except OSError:
        return "(no log)"
    return "\n".join(line[:300] for line in [line for line in lines if line][-count:])
