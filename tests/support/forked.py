"""Python programs in processes that start with torch, DeepSpeed and transformers imported, which takes 8 s of CPU time.

They are forked from one process for all tests by ``multiprocessing``'s fork server. So they share its seed of hashes.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

IMPORTED = (
    "vtcli.cli.main",
    "vtcli.engines.learner.deepspeed",
    "vtcli.runs.track",
    "transformers.models.auto.modeling_auto",
)


def start(
    program: str,
    words: list[str],
    env: Mapping[str, str],
    folder: Path,
    output: Path,
    errors: Path | None = None,
) -> BaseProcess:
    """``python -m program words``, or ``python program`` where it ends with ``.py``. Both streams go to ``output``, or
    standard error to ``errors``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    process = context.Process(target=_run, args=(program, words, dict(env), str(folder), str(output), errors))
    before = dict(os.environ)
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")  # with the first, the server is started
    try:
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return process


def two_ranks(
    script: Path, words: list[str], folder: Path, limit_s: float = 240, waited_for: int | None = None
) -> list[tuple[int | None, str]]:
    """Exit code and output of each of a script's two ranks. Where one fails, the other is ended, as by torchrun.

    With ``waited_for`` nobody is ended: the first ``waited_for`` ranks must end by themselves, and only they are told.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    env = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    own = [env | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    outputs = [folder / f"output{rank}" for rank in range(2)]
    ranks = [start(str(script), words, own[rank], folder, outputs[rank]) for rank in range(2)]
    deadline = time.monotonic() + limit_s
    try:
        while running := [rank.sentinel for rank in ranks[:waited_for] if rank.exitcode is None]:
            if waited_for is None and any(rank.exitcode for rank in ranks):
                break
            assert time.monotonic() < deadline, [output.read_text()[-2000:] for output in outputs]
            multiprocessing.connection.wait(running, 1.0)
        return [(r.exitcode, o.read_text()) for r, o in zip(ranks[:waited_for], outputs, strict=False)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def done(program: str, words: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The same to its end, within two minutes, with its streams apart."""
    with tempfile.TemporaryDirectory() as name:
        output, errors = Path(name) / "output", Path(name) / "errors"
        process = start(program, words, {**os.environ, "CUDA_VISIBLE_DEVICES": "", **env}, folder, output, errors)
        process.join(120)
        code = process.exitcode
        process.kill()
        process.join()
        assert code is not None, f"{program} {words} has not ended: {errors.read_text()[-2000:]}"
        return subprocess.CompletedProcess([program, *words], code, output.read_text(), errors.read_text())


def _run(
    program: str, words: list[str], env: dict[str, str], folder: str, output: str, errors: Path | None = None
) -> None:
    with Path(output).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if errors is not None:
        with errors.open("wb") as file:
            os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [program, *words]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
