"""Several nodes on a real Slurm: ranks by srun and by torchrun, and a run that loses the ranks of one node.

Each node is a slurmd of its own on this machine; their GPUs are files that nothing opens. ``make test-slurm``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tiny_model

from vtcli.families.qwen_vl import tiny
from vtcli.store.artifacts import ArtifactStore

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "tests" / "support" / "slurm_node.sh"
HOLD, SILENT = "VTCLI_TEST_HOLD", "VTCLI_TEST_SILENT_S"  # read by held.py
LIMIT_S = 420.0
TASKS = ("rotflip", "zoom", "read_value", "count")
DATA = ["+recipe=toolsrl", "synth.workers=1", "synth.sheet=1"]
DATA += [f"data.tasks.{task}.{split}=2" for task in TASKS for split in ("train", "validation", "test")]
PHASE = "{name:all,steps:3,form:tool,reward:{_target_:uneven.reward,of:{_target_:vtcli.rewards.toolsrl.stage1}}}"
RL = ["+recipe=toolsrl", "rl.data=data:v1", f"rl.phases=[{PHASE}]", "rl.prompts_per_step=4", "rl.group_size=2"]
RL += ["rl.checkpoint_every=1", "agent.limits.max_turn_tokens=12", "agent.limits.max_turns=1", "name=policy"]
RL += ["rl.max_banned_mass=1"]  # nothing has taught the model
SIGNALS = ["+signals.sampled._target_=uneven.measure", "+signals.held={_target_:held.measure,free:4}"]  # two steps' own
FACTS = """
import json, os
from vtcli.runs.slurm import adopt_ranks
adopt_ranks()
shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
place = os.environ.get("VTCLI_NODE_RANK") or os.environ["LOCAL_RANK"]
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
facts = [int(os.environ[name]) for name in names] + [int(place), shown[int(os.environ["LOCAL_RANK"])]]
os.write(1, (json.dumps(facts) + "\\n").encode())  # in one piece: several processes write to one pipe
"""

pytestmark = pytest.mark.slurm


def command(*words: str | Path, env: dict[str, str], cwd: Path | None = None) -> str:
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    """What jobs are submitted with, and a cluster of two nodes of two GPUs."""
    with tempfile.TemporaryDirectory(prefix="vtcli-slurm-") as above:
        folder = Path(above) / "nodes"
        paths = [str(ROOT), str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
        own = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",  # the names of these nodes resolve nowhere
            "GLOO_SOCKET_IFNAME": "lo",
            **{"NODES": "2", "GPUS": "2", "CPUS": "2"},
        }
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))} | own
        command(NODE, "start", folder, env=environ)
        try:
            yield environ
        finally:
            command(NODE, "stop", folder, env=environ)


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited {LIMIT_S:.0f} s for {what}"
        time.sleep(0.1)


def state(number: str, env: dict[str, str]) -> str:
    found = re.search(r"JobState=(\w+)", command("scontrol", "show", "job", "-o", number, env=env))
    return found[1] if found else ""


def ranks(lines: str) -> list[list[Any]]:
    return sorted(json.loads(line) for line in lines.splitlines() if line.startswith("["))


def test_srun_and_torchrun_give_the_same_ranks_on_two_nodes(env: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "facts.py"
    script.write_text(FACTS)
    two = ["srun", "--nodes=2"]
    expected = [[rank, 4, 2, rank % 2, str(rank % 2)] for rank in range(4)]  # rank, world, of a node, place, device
    each = [*two, "--ntasks-per-node=2"]
    assert ranks(command(*each, "--gpus-per-node=2", sys.executable, script, env=env)) == expected
    assert ranks(command(*each, "--gpus-per-task=1", sys.executable, script, env=env)) == expected  # each sees one
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launch = f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2 --node-rank=$SLURM_NODEID"
    launch += f" --master-addr=127.0.0.1 --master-port={port} {script}"
    by_torchrun = command(*two, "--ntasks-per-node=1", "--gpus-per-node=2", "bash", "-c", launch, env=env)
    assert ranks(by_torchrun) == expected


def ranks_of(node: str) -> list[int]:
    """Processes of a step's tasks on a node."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"SLURMD_NODENAME={node}".encode() in environ and b"rl" in words and b"srun" not in words[0]:
                found.append(int(entry.name))
    return found


def step_of(pids: list[int]) -> set[int]:
    """The process of ``slurmd`` that leads a step's tasks on their node."""
    return {int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in pids}


@dataclass(frozen=True)
class TwoNodeRun:
    """A job of four ranks that has a checkpoint of two steps, and waits in the third until ``hold`` is gone."""

    number: str
    output: Path
    home: Path
    hold: Path

    def require_finished(self, env: dict[str, str], *, soon: bool) -> None:
        """Lets the requeued job begin, which goes on after the second step and finishes.

        ``soon`` is within seconds, otherwise after Slurm's two minutes.
        """
        self.hold.unlink(missing_ok=True)
        if soon:
            command("scontrol", "update", f"JobId={self.number}", "StartTime=now+4", env=env)
        until(lambda: state(self.number, env) in ("COMPLETED", "FAILED"), "the end of the requeued job")
        assert state(self.number, env) == "COMPLETED", self.output.read_text()[-6000:]
        assert "rl 2/3 from a checkpoint" in self.output.read_text()
        policy = ArtifactStore(self.home).resolve("policy:v1").path
        assert len((policy / "metrics.jsonl").read_text().splitlines()) == 3


def begin(env: dict[str, str], tmp_path: Path, silent_s: str) -> TwoNodeRun:
    work, hold = tmp_path / "jobs", tmp_path / "hold"
    work.mkdir()
    hold.touch()
    sizes = replace(tiny_model.SIZES, vocab_size=600, max_positions=1024)
    tiny.build(work / "start", sizes, tiny.train_tokenizer(tiny_model.TEXTS, sizes.vocab_size), seed=3)
    own = ["scale=tiny", "tracker=none", f"home={work / 'artifacts'}"]
    command(sys.executable, "-m", "vtcli", "synth", *DATA, *own, "name=data", env=env, cwd=work)

    script = ROOT / "stages" / "slurm" / "rl.sbatch"
    submit = ["sbatch", "--parsable", "--nodes=2", "--gpus-per-node=2", "--cpus-per-gpu=1", script]
    arguments = [*RL, *SIGNALS, *own, f"rl.model={work / 'start'}"]
    told = {**env, HOLD: str(hold), SILENT: silent_s}
    number = command(*submit, *arguments, env=told, cwd=work).strip()
    output = work / f"vtcli-rl-{number}.out"
    folder = work / "artifacts" / ".work"

    def two_steps() -> bool:
        assert state(number, env) in ("PENDING", "RUNNING"), output.read_text()[-6000:]
        return bool(list(folder.glob("rl-*/checkpoints/step-*2/done.json")))

    until(two_steps, "the checkpoint of the second step")
    return TwoNodeRun(number, output, work / "artifacts", hold)


@pytest.mark.wide  # `.ci/run` has a job that is stopped twice
@pytest.mark.parametrize("lost", ["killed", "frozen"])
def test_a_run_that_loses_a_node_ends_with_one_error_and_goes_on_when_requeued(
    env: dict[str, str], tmp_path: Path, lost: str
) -> None:
    """The ranks of a node are killed, or stopped: then no process ends and no connection closes."""
    run = begin(env, tmp_path, "20" if lost == "frozen" else "")
    ended = ranks_of("vtnode2")
    assert len(ended) == 2
    for pid in ended:
        os.kill(pid, signal.SIGKILL if lost == "killed" else signal.SIGSTOP)
    if lost == "frozen":
        run.hold.unlink()  # the others go on, until they wait for those
    until(lambda: state(run.number, env) == "FAILED", "the end of the job")
    said = run.output.read_text()
    assert "Traceback" not in said, said[-6000:]
    assert said.count("another rank of this run has ended") <= 1, said[-6000:]
    assert ("ranks 2, 3 gave no sign of life for 20 s" in said) == (lost == "frozen"), said[-6000:]
    assert not list(run.home.glob("policy/v*"))

    command("scontrol", "requeue", run.number, env=env)
    run.require_finished(env, soon=True)


@pytest.mark.wide  # six minutes on a busy machine: `.ci/run` has a node whose ranks are killed
def test_a_run_that_loses_a_machine_with_its_slurmd_is_requeued_and_goes_on(
    env: dict[str, str], tmp_path: Path
) -> None:
    """All of a node is stopped, as where the power fails: nothing answers, no process ends, no connection closes.

    Slurm requeues the job, the machine comes back, and the job goes on after its second step.
    """
    run = begin(env, tmp_path, "20")
    folder = Path(env["SLURM_CONF"]).parent
    ranks = ranks_of("vtnode2")
    lost = [int((folder / "slurmd-vtnode2.pid").read_text()), *step_of(ranks), *ranks]
    assert len(lost) == 4
    for pid in lost:
        os.kill(pid, signal.SIGSTOP)
    try:
        run.hold.unlink()
        until(lambda: "ranks 2, 3 gave no sign of life for 20 s" in run.output.read_text(), "the error of the others")
        until(lambda: "Terminating StepId" in run.output.read_text(), "the end of the others")
        # srun waits for the node that is gone. Otherwise the job would fail before Slurm could requeue it.
        assert state(run.number, env) == "RUNNING", run.output.read_text()[-6000:]
        # Said by hand: with a SlurmdTimeout of 60 s slurmctld had not said it after four minutes (docs/slurm.md).
        command("scontrol", "update", "NodeName=vtnode2", "State=DOWN", "Reason=gone", env=env)
        until(lambda: state(run.number, env) != "RUNNING", "the end of the job's first start")
        until(lambda: state(run.number, env) == "PENDING", "Slurm's requeue")
    finally:
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
    assert "Traceback" not in run.output.read_text()
    assert not list(run.home.glob("policy/v*"))

    command("slurmd", "-f", env["SLURM_CONF"], "-N", "vtnode2", env=env | {"PATH": env["PATH"] + ":/usr/sbin:/sbin"})
    nodes = ("sinfo", "-h", "-p", "work", "-o", "%t %D")
    # ReturnToService=2: a node that registers again is up again.
    until(lambda: command(*nodes, env=env).split() == ["idle", "2"], "the machine to come back")
    # Begun after 4 s it got a SIGTERM, probably one that Slurm still owed to the node.
    run.require_finished(env, soon=False)
