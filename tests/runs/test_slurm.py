"""What Slurm tells the tasks of a step, as torch wants to hear it; the scripts refuse what is not a Slurm job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import each_case

from vtcli.errors import ConfigError
from vtcli.runs import slurm

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "stages" / "slurm").glob("*.sbatch"))
TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
}


def adopted(**changes: str | None) -> dict[str, str]:
    environ = {key: value for key, value in {**TASK, **changes}.items() if value is not None}
    slurm.adopt_ranks(environ)
    return environ


def test_a_task_of_a_step_is_a_rank() -> None:
    found = adopted()
    assert {key: found[key] for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")} == {
        "RANK": "11",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "16",
        "MASTER_ADDR": "gpu07",
    }
    assert 20_000 <= int(found["MASTER_PORT"]) < 32_000
    assert adopted(SLURM_PROCID="0", SLURM_LOCALID="0")["MASTER_PORT"] == found["MASTER_PORT"]
    others = {adopted(SLURM_STEP_ID="1")["MASTER_PORT"], adopted(SLURM_JOB_ID="4712")["MASTER_PORT"]}
    assert len(others | {found["MASTER_PORT"]}) == 3


def test_one_machine_needs_no_name_and_one_visible_gpu_is_the_first() -> None:
    assert adopted(SLURM_STEP_NUM_NODES="1")["MASTER_ADDR"] == "127.0.0.1"
    assert adopted(CUDA_VISIBLE_DEVICES="5")["LOCAL_RANK"] == "0"
    assert adopted(CUDA_VISIBLE_DEVICES="0,1,2,3")["LOCAL_RANK"] == "3"


def test_a_node_knows_how_many_ranks_it_has_and_which_of_them_leads() -> None:
    assert adopted()["LOCAL_WORLD_SIZE"] == "8"
    assert adopted(SLURM_STEP_TASKS_PER_NODE="12,4")["LOCAL_WORLD_SIZE"] == "4"
    alone = adopted(CUDA_VISIBLE_DEVICES="5")  # --gpus-per-task=1: every device is the first one
    assert (alone["LOCAL_RANK"], alone["VTCLI_NODE_RANK"]) == ("0", "3")
    assert slurm.tasks_of_nodes("8(x3),4") == [8, 8, 8, 4]


@each_case(
    "changes",
    [
        {"RANK": "2", "WORLD_SIZE": "4"},  # torchrun in each task
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": None, "SLURM_NTASKS": "16"},  # a batch script
    ],
)
def test_who_has_ranks_already_or_is_alone_is_left_alone(changes: dict[str, str | None]) -> None:
    assert adopted(**changes) == {key: value for key, value in {**TASK, **changes}.items() if value is not None}


def test_a_given_address_stays() -> None:
    found = adopted(MASTER_ADDR="10.0.0.7", MASTER_PORT="29500")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["RANK"]) == ("10.0.0.7", "29500", "11")


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="SLURM_PROCID, SLURM_STEP_NODELIST is not set"):
        adopted(SLURM_PROCID=None, SLURM_STEP_NODELIST="")


@each_case(
    ("nodes", "first"),
    [
        ("vm", "vm"),
        ("a,b", "a"),
        ("gpu[03-05,9],login1", "gpu03"),
        ("rack1-[2-3]n[01-04]", "rack1-2n01"),
        ("n[7]-ib", "n7-ib"),
    ],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert slurm.first_host(nodes) == first


def test_a_stage_of_one_process_refuses_to_be_several() -> None:
    slurm.require_one_process("eval", {"WORLD_SIZE": "1"})
    with pytest.raises(ConfigError, match=r"vtcli eval is one process, and 16 were started"):
        slurm.require_one_process("eval", adopted())


@each_case("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_outside_of_slurm_says_what_to_do(script: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    done = subprocess.run(["bash", script], env=environ, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert re.fullmatch(rf"{script.name}: no Slurm job .*sbatch.* vtcli \w+\n", done.stderr)


def test_every_stage_has_a_script_that_requeues_and_names_no_site() -> None:
    from vtcli.runbook.step import STAGES

    stages = {*STAGES, "synth_merge", "filter_merge", "eval_merge"}
    assert {path.stem for path in SCRIPTS} == {*stages, "client"}
    for path in SCRIPTS:
        head = " ".join(re.findall("^#SBATCH (.*)", path.read_text(), re.MULTILINE))
        assert "--open-mode=append" in head.split()
        if path.stem in stages:
            assert {"--requeue", "--signal=B:USR1@120"} <= set(head.split())
        assert not re.search(r"--(partition|account|qos|nodelist|constraint)|-[pA] ", head)


@each_case(
    ("arguments", "words"),
    [
        (["toolsrl"], "say scale="),
        (["toolsrl", "scale=paper"], "MODEL="),
        (["toolsrl", "scale=tiny", "model=x"], "NAME= and MODEL="),
    ],
)
def test_the_pipeline_refuses_before_anything_is_submitted(arguments: list[str], words: str, tmp_path: Path) -> None:
    submitted = tmp_path / "submitted"
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ntouch {submitted}\n")
    (tmp_path / "sbatch").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "MODEL": ""}
    command = ["bash", ROOT / "stages" / "scripts" / "pipeline.sh", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert not submitted.exists()


class Cluster:
    """Stand-ins of Slurm's commands and of curl, which tell what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs(squeue="echo RUNNING node7", scancel="", srun="", curl="", sleep="")

    def programs(self, **bodies: str) -> None:
        for name, body in bodies.items():
            path = self.folder / name
            path.write_text(f'#!/bin/bash\necho "{name} $*" >> {self.folder}/told\n{body}\n')
            path.chmod(0o755)

    @property
    def told(self) -> list[str]:
        path = self.folder / "told"
        return path.read_text().splitlines() if path.exists() else []

    def client(self, **more: str) -> subprocess.Popen[str]:
        environ = os.environ | {"SLURM_JOB_ID": "8", "PATH": f"{self.folder}:{os.environ['PATH']}"} | more
        command = ["bash", ROOT / "stages" / "slurm" / "client.sbatch", "7", "8123", "ask"]
        return subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)


ENDED = ["scancel --state=PENDING 7", "scancel --signal=TERM 7"]


def test_a_clients_job_ends_its_server_however_it_ends(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.programs(srun="exit 5")
    assert cluster.client().wait(20) == 5
    assert "srun --nodes=1 --ntasks=1 ask" in cluster.told and cluster.told[-2:] == ENDED
    assert any(line.startswith("curl --noproxy *") for line in cluster.told)
    assert cluster.client(KEEP_SERVER="1").wait(20) == 5
    assert cluster.told.count(ENDED[1]) == 1
    cluster.programs(srun=f"touch {tmp_path}/begun; exec /bin/sleep 5")
    client = cluster.client()
    for _ in range(400):
        if (tmp_path / "begun").exists():
            break
        time.sleep(0.05)
    client.terminate()
    assert client.wait(20) == 143 and cluster.told[-2:] == ENDED


@each_case(
    ("squeue", "words"),
    [
        ("[ -e $0.once ] || { touch $0.once; exit 1; }; echo RUNNING node7", None),
        ("exit 1", "squeue failed three times in a row: job 7 is over, or Slurm does not answer"),
        ("exit 0", "job 7 is over: its output says why"),
        ("echo FAILED node7", "job 7 is FAILED"),
        ("echo PENDING", "the server of job 7 was not ready within 1 s (WAIT_S)"),
    ],
)
def test_a_client_waits_for_its_server_and_says_why_it_stops(squeue: str, words: str | None, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.programs(squeue=squeue)
    client = cluster.client(**({"WAIT_S": "1"} if "PENDING" in squeue else {}))
    _, said = client.communicate(timeout=20)
    assert client.returncode == (2 if words else 0), said
    assert words is None or words in said
    assert cluster.told[-2:] == ENDED


def test_a_checkout_whose_path_has_a_blank_is_found(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    folder = tmp_path / "my work" / "stages" / "slurm"
    shutil.copytree(ROOT / "stages" / "slurm", folder)
    cluster.programs(scontrol=f"echo 'JobId=8'; echo '   Command={folder}/judge.sbatch report@latest data=/a/b'")
    environ = {"SLURM_JOB_ID": "8", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": "2"}
    environ = os.environ | environ | {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", folder / "judge.sbatch", "report@latest", "data=/a/b"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert cluster.told[-1].endswith("vtcli judge report@latest data=/a/b")
    sources = [line for path in SCRIPTS for line in path.read_text().splitlines() if line.startswith("source ")]
    assert len(sources) == len(SCRIPTS) - 1 and len(set(sources)) == 1  # the client's job runs no stage
