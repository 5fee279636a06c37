"""The wording of the twenty errors that a user meets most, whole. Other tests name the type, and the key, path or
choice, so that a sentence is changed in one place."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import failures
from fakes import make_sample, make_trajectory

from stages import rl
from vtcli.cli import main
from vtcli.config import compose, machine
from vtcli.config.machine import CudaDevice, Needs
from vtcli.data.importers.problems import BadRow, BadRows
from vtcli.errors import ConfigError, EngineError, InputError, VtcliError
from vtcli.rewards import need
from vtcli.rollout.loop import refuse_broken
from vtcli.schema import Signals, Stop
from vtcli.serve import viewing
from vtcli.store import disk
from vtcli.store.artifacts import ArtifactStore

CONF = Path(__file__).parents[2] / "conf"
NOTHING: Any = None  # to serve: the port is tried first
TOOLSRL = ["+recipe=toolsrl", "scale=tiny"]
GIVEN = ["data=data:v1", "model=base:v1"]


def rl_of(*words: str) -> Callable[[Path], Any]:
    """Reads a command line of rl."""
    return lambda folder: compose.build(rl.Config, compose.load("rl", list(words)))


def store_of(folder: Path) -> ArtifactStore:
    """A store with one dataset, data:v1."""
    store = ArtifactStore(folder / "home")
    with store.draft("data", "dataset") as draft:
        (draft.path / "rows.parquet").write_bytes(b"rows")
        draft.commit()
    return store


def damaged(folder: Path) -> None:
    store = store_of(folder)
    path = store.resolve("data:v1").path / "rows.parquet"
    path.chmod(0o644)
    path.write_bytes(b"ROWS")
    store.resolve("data:v1", verify=True)


def bad_rows(folder: Path) -> None:
    found = BadRows("answer-train", "error", folder / "bad.jsonl")
    found.add(BadRow("a.jsonl", 3, "no image", "a.jsonl, row 3: there is no image cat.png."))
    found.check()


def broken(folder: Path) -> None:
    sample = make_sample(None)
    gone = make_trajectory(sample, [], stop=Stop.BROKEN, error="RunLostError: lost: the sandbox died")
    refuse_broken(0.5, 0.1, [gone, gone], f"eval of data:v1 in {folder}")


def held(folder: Path) -> None:
    with disk.locked(folder / "run.lock", 0, "the work folder of rl"), disk.locked(folder / "run.lock", 0, "the same"):
        pass


def taken(folder: Path) -> None:
    """A port at which somebody listens already."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        try:
            viewing.serve(NOTHING, port, lambda url: None)
        except InputError as error:
            raise InputError(str(error).replace(str(port), "8000")) from error


def as_printed(problem: str | None) -> None:
    """A sentence that the command prints for an error of a library."""
    raise InputError(problem)


def few_gpus(folder: Path) -> None:
    scales = {"tiny": Needs(), "node": Needs(8)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "gpus", lambda: (CudaDevice("NVIDIA L4", 22.5),))
        machine.require("node", "Qwen/Qwen2.5-VL-7B-Instruct", scales)


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


def no_memory() -> str | None:
    lost = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB."
    return main._memory_problem(OutOfMemoryError(lost))


def full_disk(folder: Path) -> None:
    with disk.checked(folder / "a.parquet"):
        raise OSError(errno.ENOSPC, "No space left on device")


GOLDEN: dict[str, tuple[Callable[[Path], Any], type[VtcliError], str]] = {
    "no recipe": (
        rl_of(*GIVEN, "scale=tiny"),
        ConfigError,
        "rl.phases: needs a value: give rl.phases=… on the command line or in the recipe.\n  set in conf/config.yaml:N",
    ),
    "misspelt recipe": (
        rl_of("+recipe=toolrl"),
        ConfigError,
        "+recipe=toolrl: there is no recipe 'toolrl'. Did you mean 'toolsrl'? The files are in CONF/recipe. "
        "For a folder of your own: --config-dir FOLDER.",
    ),
    "misspelt choice": (
        rl_of(*TOOLSRL, "engine=vlllm"),
        ConfigError,
        "engine=vlllm: there is no engine 'vlllm'. Did you mean 'vllm'? The files are in CONF/engine. For a "
        "folder of your own: --config-dir FOLDER.",
    ),
    "unknown variant": (
        rl_of(*TOOLSRL, "variant=code"),
        ConfigError,
        "variant=code: the recipe toolsrl has no variant 'code', only 'paper', 'answer', 'combined', "
        "'discrete', 'global', 'mixed'. Recipes with it: codedance, codev, codevision, deepeyes, "
        "grpo_consistency, pyvision_image, pyvision_video.",
    ),
    "no data": (
        rl_of(*TOOLSRL),
        ConfigError,
        "rl.data: needs a value: give rl.data=… on the command line or in the recipe.\n  set in conf/config.yaml:N",
    ),
    "misspelt key": (
        rl_of(*TOOLSRL, *GIVEN, "rl.grup_size=3"),
        ConfigError,
        "rl.grup_size=3: there is no key 'rl.grup_size' in the configuration. Did you mean 'rl.group_size'? "
        "(A new key is added with +rl.grup_size=…)",
    ),
    "wrong type": (
        rl_of(*TOOLSRL, *GIVEN, "rl.group_size=many"),
        ConfigError,
        "rl.group_size=many: expected a number (it was 8), got 'many'.",
    ),
    "out of bounds": (
        rl_of(*TOOLSRL, *GIVEN, "agent.limits.max_turns=-1"),
        ConfigError,
        "rl.agent.limits.max_turns: must be at least 1, got -1.\n  set in command line: agent.limits.max_turns=-1",
    ),
    "judge without address": (
        rl_of(*TOOLSRL, *GIVEN, "judge=openai"),
        ConfigError,
        "judge.url: needs a value: give judge.url=… on the command line or in the recipe.\n"
        "  set in conf/judge/openai.yaml:N",
    ),
    "missing artifact": (
        lambda folder: store_of(folder).resolve("date:v1"),
        InputError,
        "There is no artifact date:v1 (nothing of that name in FOLDER/home). `vtcli artifacts ls` lists what there is.",
    ),
    "wrong kind": (
        lambda folder: store_of(folder).resolve("data:v1", kind="model"),
        InputError,
        "data:v1 is an artifact of kind dataset; expected one of kind model. `vtcli artifacts ls` shows the "
        "kinds; `vtcli sft name=data` or `vtcli rl name=data` makes one.",
    ),
    "damaged artifact": (
        damaged,
        InputError,
        "The artifact data:v1 in FOLDER/home/data/v1 is damaged: rows.parquet has another content (sha256). "
        "Put a copy of it back, or remove it (`vtcli artifacts rm data:v1`) and make it again, as another "
        "version.",
    ),
    "bad rows": (
        bad_rows,
        InputError,
        "answer-train: 1 rows cannot be used (1 × no image):\n"
        "  a.jsonl, row 3: there is no image cat.png.\n"
        "Fix them, the columns or the row function, or leave them out with synth.bad_rows=skip.",
    ),
    "full disk": (
        full_disk,
        InputError,
        "Cannot write FOLDER/a.parquet: No space left on device. The disk is full: free some space there, or "
        "point `home` at another folder.",
    ),
    "run that runs already": (
        held,
        InputError,
        "The lock FOLDER/run.lock (the same) is held by process N; waited 0 s. Wait for that process to end, "
        "or stop it, and run the same command again.",
    ),
    "port taken": (
        taken,
        InputError,
        "--port 8000 cannot be listened at: error while attempting to bind on address ('127.0.0.1', 8000): "
        "address already in use. Give another port (--port 0 takes a free one), or end the other server.",
    ),
    "few GPUs": (
        few_gpus,
        EngineError,
        "scale=node with model Qwen/Qwen2.5-VL-7B-Instruct cannot run on this machine:\n"
        "  - 1 CUDA device found; it needs 8 CUDA devices on each machine\n"
        "What would run here: scale=tiny. `vtcli doctor` lists the installed packages.",
    ),
    "memory of the GPU": (
        lambda folder: as_printed(no_memory()),
        InputError,
        "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 "
        "GiB.\n"
        "Finished work and the last checkpoint are whole, and the same command continues. What takes less: "
        "micro-batches of fewer tokens (STAGE.backend.batch_tokens=…, the same update), "
        "STAGE.backend.activation_checkpointing=true, STAGE.backend.offload=optimizer, and for rl "
        "engine.max_batch=…; `vtcli plan` says what fits on a GPU.",
    ),
    "signal not measured": (
        lambda folder: need(Signals({"stop": "answered"}), "consistency"),
        ConfigError,
        "the reward needs the signal 'consistency', which was not measured (measured: stop); add the signal "
        "that measures it to the configuration, or choose a reward that fits the task and form of the data",
    ),
    "rollouts broke": (
        broken,
        EngineError,
        "eval of data:v1 in FOLDER: 50% of the rollouts broke, at most agent.max_broken=10% may. The "
        "commonest reason, of 2 of 2: RunLostError: lost: the sandbox died. Fix that and give the same "
        "command again, or raise agent.max_broken.",
    ),
}


def test_the_wording_of_the_errors_that_users_meet_most(tmp_path: Path) -> None:
    def check(name: str, cause: Callable[[Path], Any], kind: type[VtcliError], text: str) -> None:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        with pytest.raises(VtcliError) as caught:
            cause(folder)
        told = str(caught.value).replace(str(folder), "FOLDER").replace(str(CONF), "CONF")
        told = re.sub(r"(held by process )\d+ on [^;]+|(set in \S+\.yaml:)\d+", r"\1\2N", told)
        assert isinstance(caught.value, kind)
        assert told == text

    assert not failures([(name, *row) for name, row in GOLDEN.items()], check)
