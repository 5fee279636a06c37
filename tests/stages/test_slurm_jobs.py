"""The stages as jobs of a real Slurm of one node: out of time, preempted and requeued they end as if nothing had been.

``make test-slurm``; `squeue` and the jobs' output can be watched in the folder that it names.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vtcli.store.artifacts import ArtifactStore

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "tests" / "support" / "slurm_node.sh"
HOLD = "VTCLI_TEST_HOLD"  # read by held.py
LIMIT_S = 420.0  # for anything that a job does, on two slow cores that others use, too
TASKS = ("rotflip", "zoom", "read_value", "count")
SIZES = [
    *("scale=tiny", "tracker=none", "synth.workers=1", "synth.sheet=1"),
    *(f"data.tasks.{task}.{split}=2" for task in TASKS for split in ("train", "validation", "test")),
    *("model.architecture.hidden_size=48", "model.architecture.layers=1", "model.architecture.heads=3"),
    *("model.architecture.kv_heads=1", "model.architecture.intermediate_size=64", "model.architecture.vision_depth=1"),
    *("model.architecture.vision_hidden_size=32", "model.architecture.vision_heads=2"),
]
DEMOS = ["synth.demos.validation=0.2"]
DEMOS += [f"synth.demos.rows.{task}.{kind}=3" for task in TASKS for kind in ("tool", "answer", "perceive")]
SFT = ["sft.epochs=2", "sft.rows_per_step=2", "sft.checkpoint_every=1"]  # 36 steps
PHASE = "{name:all,steps:4,form:tool,reward:{_target_:uneven.reward,of:{_target_:vtcli.rewards.toolsrl.stage1}}}"
RL = [
    *("rl.prompts_per_step=2", "rl.group_size=2", "rl.checkpoint_every=1", "agent.limits.max_turn_tokens=24"),
    f"rl.phases=[{PHASE}]",
    "rl.max_banned_mass=1",  # its model has hardly been taught
]
# A group has a gradient whatever its rewards are, and the job waits to be preempted after its first step.
SIGNALS = ["+signals.sampled._target_=uneven.measure", "+signals.held={_target_:held.measure,free:4}"]
EVAL = ["eval.max_samples=1", "eval.forms=[tool]"]

pytestmark = pytest.mark.slurm


def command(*words: str | Path, env: dict[str, str], cwd: Path | None = None, timeout_s: float = LIMIT_S) -> str:
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    """What jobs are submitted with, and a cluster of one node with two cores for them."""
    with tempfile.TemporaryDirectory(prefix="vtcli-slurm-") as above:
        folder = Path(above) / "node"
        paths = [str(ROOT), str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
        own = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "CPUS": "2",
        }
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))} | own
        command(NODE, "start", folder, env=environ)
        try:
            yield environ
        finally:
            command(NODE, "stop", folder, env=environ)
        assert not folder.exists()


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited {LIMIT_S:.0f} s for {what}"
        time.sleep(0.05)


def job(number: str, env: dict[str, str]) -> dict[str, str]:
    """What scontrol knows of a job: JobState, Restarts, …"""
    return dict(re.findall(r"(\w+)=(\S*)", command("scontrol", "show", "job", "-o", number, env=env)))


def checkpoint(work: Path, stage: str, number: str, env: dict[str, str]) -> None:
    """Waits for the first whole checkpoint of a job that runs."""

    def there() -> bool:
        if list(work.glob(f"artifacts/.work/{stage}-*/checkpoints/step-*/done.json")):
            return True
        state = job(number, env)["JobState"]
        assert state in ("PENDING", "RUNNING"), f"{stage} is {state}: {outputs(work)}"
        return False

    until(there, f"a checkpoint of {stage}")


def requeued(number: str, env: dict[str, str]) -> None:
    """Waits for a job to be pending for the second time, and spares it most of Slurm's two minutes before it may begin.

    A start in the very second of the job's end fails: slurmd takes the new credential for the revoked one.
    """
    until(lambda: job(number, env)["JobState"] == "PENDING" and job(number, env)["Restarts"] == "1", "a requeue")
    command("scontrol", "update", f"JobId={number}", "StartTime=now+4", env=env)


def ended(numbers: Sequence[str], work: Path, env: dict[str, str]) -> None:
    until(lambda: not command("squeue", "-h", "-j", ",".join(numbers), env=env).strip(), f"jobs {numbers}")
    states = {number: job(number, env)["JobState"] for number in numbers}
    assert set(states.values()) == {"COMPLETED"}, f"{states}: {outputs(work)}"


def outputs(work: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in sorted(work.glob("vtcli-*.out")))


def numbers_of(table: str) -> dict[str, str]:
    """The pipeline's jobs by the artifact that they make."""
    lines = [line.split() for line in table.splitlines() if re.match(r"\d+ ", line)]
    return {
        f"{line[1]} {word.removeprefix('name=')}": line[0]
        for line in lines
        for word in line
        if word.startswith("name=")
    }


def made_without_slurm(home: Path, env: dict[str, str]) -> None:
    """The same artifacts by plain commands in one go; sft in two ranks, as in its job."""
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

    def vtcli(*words: str, launcher: Sequence[str] = ()) -> None:
        line = [sys.executable, *launcher, "-m", "vtcli", *words, *SIZES, f"home={home}"]
        command(*line, env=env, cwd=home.parent)

    vtcli("synth", "+recipe=toolsrl", "name=p-data")
    vtcli("synth", "+recipe=tiny_base", "name=p-demos", *DEMOS)
    vtcli("sft", "+recipe=tiny_base", "name=p-base", "sft.data=p-demos:v1", *SFT, *SIGNALS, launcher=ranks)
    vtcli("rl", "+recipe=toolsrl", "name=p-policy", "rl.data=p-data:v1", "rl.model=p-base:v1", *RL, *SIGNALS)


def metrics(folder: Path) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in found]


def test_a_pipeline_that_is_stopped_twice_ends_as_one_that_is_not(env: dict[str, str], tmp_path: Path) -> None:
    work, hold = tmp_path / "jobs", tmp_path / "hold"
    work.mkdir()
    hold.touch()
    (tmp_path / "urgent.sbatch").write_text("#!/bin/sh\nsleep 1\n")
    pipeline = {"NAME": "p", "SFT_SBATCH": "--ntasks-per-node=2", HOLD: str(hold)}
    print(f"\nSLURM_CONF={env['SLURM_CONF']}, output in {work}")
    overrides = [*SIZES, *DEMOS, *SFT, *RL, *SIGNALS, *EVAL]
    table = command(ROOT / "stages" / "scripts" / "pipeline.sh", "toolsrl", *overrides, env=env | pipeline, cwd=work)
    jobs = numbers_of(table)
    sft, rl = jobs["sft p-base"], jobs["rl p-policy"]

    checkpoint(work, "sft", sft, env)
    command("scancel", "--batch", "--signal=USR1", sft, env=env)  # as Slurm does two minutes before the time limit
    requeued(sft, env)
    checkpoint(work, "rl", rl, env)
    urgent = command("sbatch", "--parsable", "-p", "urgent", "-n2", tmp_path / "urgent.sbatch", env=env, cwd=work)
    until(lambda: job(rl, env)["Restarts"] == "1", "the preemption of rl")
    hold.unlink()
    requeued(rl, env)
    ended([*jobs.values(), urgent.strip()], work, env)

    plain = tmp_path / "plain" / "artifacts"
    plain.parent.mkdir()
    made_without_slurm(plain, env)
    here, there = ArtifactStore(work / "artifacts"), ArtifactStore(plain)
    for name in ("p-data", "p-demos"):
        merged = here.resolve(f"{name}:v1")
        assert [parent.ref for parent in merged.manifest.parents] == [f"{name}-shard-{i}-of-4:v1" for i in range(1, 5)]
        assert merged.digest == there.resolve(f"{name}:v1").digest
    for name in ("p-base", "p-policy"):
        stopped, whole = here.resolve(f"{name}:v1").path, there.resolve(f"{name}:v1").path
        weights = sorted(path.relative_to(whole) for path in whole.rglob("model.safetensors"))
        assert weights
        for path in weights:
            assert (stopped / path).read_bytes() == (whole / path).read_bytes(), path
        assert metrics(stopped) == metrics(whole)
        assert any(line["updated"] for line in metrics(whole))
    for stage, number in (("sft", sft), ("rl", rl)):
        assert re.search(
            rf"^{stage} \d+/\d+ from a checkpoint$", (work / f"vtcli-{stage}-{number}.out").read_text(), re.M
        )
    assert here.newest_version("p-base") == here.newest_version("p-policy") == 1
    assert not [path for path in (work / "artifacts" / ".work").iterdir() if path.is_dir()]


@pytest.mark.wide
def test_a_sweep_runs_through_the_submitit_launcher(env: dict[str, str], tmp_path: Path) -> None:
    sweep = [sys.executable, "-m", "vtcli", "synth", "--multirun", "hydra/launcher=submitit_slurm", "seed=0,1", *SIZES]
    command(*sweep, "hydra.launcher.timeout_min=10", env=env, cwd=tmp_path)
    seeds = {artifact.manifest.seed for artifact in ArtifactStore(tmp_path / "artifacts").ls()}
    assert seeds == {0, 1}
    wrong = [*sweep[:3], "eval", *sweep[4:], "+recipe=toolsrl", "data=dataset@latest", "model=nothing:v1"]
    done = subprocess.run(wrong, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert "There is no artifact nothing:v1" in done.stderr


@pytest.mark.wide
def test_a_job_asks_the_server_of_another_job_and_ends_it(env: dict[str, str], tmp_path: Path) -> None:
    import tiny_model

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    keyed = env | {"VTCLI_API_KEY": "hidden"}
    scripts = ROOT / "stages" / "slurm"
    words = [f"model={tiny_model.folder()}", "env=native", "scale=tiny", "tracker=none", f"home={tmp_path / 'home'}"]
    words += ["serve.host=0.0.0.0", f"serve.port={port}"]
    server = command("sbatch", "--parsable", scripts / "serve.sbatch", *words, env=keyed, cwd=tmp_path).strip()
    ask = "import openai; asked = openai.OpenAI().models.list(); print('served:', *(one.root for one in asked))"
    line = ["sbatch", "--parsable", f"--dependency=after:{server}", scripts / "client.sbatch", server, port]
    client = command(*line, sys.executable, "-c", ask, env=keyed, cwd=tmp_path).strip()
    ended([server, client], tmp_path, env)
    assert f"served: {tiny_model.folder()}" in (tmp_path / f"vtcli-client-{client}.out").read_text()
    late = command(*line[:2], *line[3:], "true", env=keyed, cwd=tmp_path).strip()
    until(lambda: job(late, env)["JobState"] == "FAILED", "the client of a server that is over")
    assert "is over" in (tmp_path / f"vtcli-client-{late}.out").read_text()


@pytest.mark.wide
def test_a_paper_is_reproduced_by_jobs_that_wait_for_each_other(env: dict[str, str], tmp_path: Path) -> None:
    rows = ",".join(f"{task}:{{tool:2,answer:2,perceive:2}}" for task in TASKS)
    more = [word for word in SIZES if word != "scale=tiny"]
    more += ["sft.epochs=1", "sft.first.epochs=0", "sft.rows_per_step=8", "rl.prompts_per_step=2", "rl.group_size=2"]
    more += ["rl.steps_per_phase=1", "rl.allow_no_update=true", "agent.limits.max_turn_tokens=24", *EVAL]
    more += ["rl.max_banned_mass=1"]  # its model has hardly been taught
    more += [f"'synth.demos={{validation:0.2,rows:{{{rows}}}}}'"]
    line = [sys.executable, "-m", "vtcli", "run", "reproduce", "recipe=toolsrl", "name=p", "--more", " ".join(more)]
    own = env | {"SFT_SBATCH": "--ntasks-per-node=1", "RL_SBATCH": "--ntasks-per-node=1"}
    done = subprocess.run(
        [*line, "--slurm"], env=own, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    numbers = re.findall(r"^vtcli: (\d+) +\w+ +p-tiny-", done.stderr, re.MULTILINE)
    assert len(numbers) == 9  # data and demonstrations are made in shards and put together
    ended(numbers, tmp_path, env)
    store = ArtifactStore(tmp_path / "artifacts")
    lineage = store.lineage("p-tiny-report-s0:v1").text()
    for name in ("data", "demos", "base-s0", "clean", "before-s0", "policy-s0"):
        assert f"p-tiny-{name}:v1" in lineage
    table = command(*line, "--table", env=own, cwd=tmp_path)
    assert "| figure | the paper prints | before | seed 0 | mean |" in table


@pytest.mark.wide
def test_an_array_of_evals_is_put_together(env: dict[str, str], tmp_path: Path) -> None:
    import tiny_model

    home, scripts = f"home={tmp_path / 'home'}", ROOT / "stages" / "slurm"
    command(sys.executable, "-m", "vtcli", "synth", "+recipe=toolsrl", "name=data", *SIZES, home, env=env, cwd=tmp_path)
    words = ["+recipe=toolsrl", *SIZES[:2], home, "name=report", "eval.data=data:v1", "eval.policy=oracle"]
    words += [f"eval.model={tiny_model.folder()}", "eval.max_samples=3"]
    shards = command("sbatch", "--parsable", "--array=1-2", scripts / "eval.sbatch", *words, env=env, cwd=tmp_path)
    after = ["sbatch", "--parsable", f"--dependency=afterok:{shards.strip()}", scripts / "eval_merge.sbatch"]
    merge = command(*after, *words, "eval.merge=2", env=env, cwd=tmp_path).strip()
    ended([merge], tmp_path, env)
    store = ArtifactStore(tmp_path / "home")
    assert {artifact.ref for artifact in store.ls()} >= {"report-shard-1-of-2:v1", "report-shard-2-of-2:v1"}
    assert len((store.resolve("report:v1").path / "trajectories.jsonl").read_text().splitlines()) == 6


@pytest.mark.wide
def test_arrays_import_and_filter_as_one_process_does(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    rows: list[str] = []
    for number in range(6):  # the second shard shows again what the first has shown
        grid = np.random.default_rng(number % 3).integers(0, 256, (12, 16, 3), np.uint8)
        Image.fromarray(grid).resize((160, 120)).save(tmp_path / "img" / f"{number}.png")
        row = {"question": "Which is it?", "answer": str(number % 3), "rule": "exact", "image": f"img/{number}.png"}
        rows.append(json.dumps(row))
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    generate = f"{{_target_: vtcli.data.importers.rows.generate, path: '{tmp_path}/{{split}}.jsonl', name: own}}"
    task = f"+data.tasks.own={{train: null, forms: [answer], generate: {generate}}}"
    synth = [*SIZES[:3], "~data.tasks", task, "synth.forms=[answer]", "synth.keep_images=reference", "name=data"]
    clean = [*SIZES[:2], "filter=near", "data=data:v1", "name=clean"]
    home = f"home={tmp_path / 'home'}"

    def submit(stage: str, *words: str, after: str = "", array: str = "", shards: str = "") -> str:
        options = [*([f"--array={array}"] if array else []), *([f"--dependency=afterok:{after}"] if after else [])]
        line = ["sbatch", "--parsable", *options, ROOT / "stages" / "slurm" / f"{stage}.sbatch", *words, home]
        return command(*line, env=env | ({"SHARDS": shards} if shards else {}), cwd=tmp_path).strip()

    made = submit("synth_merge", *synth, "synth.merge=2", after=submit("synth", *synth, array="1-2"))
    first = submit("filter", *clean, after=made, array="1", shards="2")
    early = submit("filter_merge", *clean, "filter.merge=2", after=first)
    until(lambda: job(early, env)["JobState"] == "FAILED", "a merge without the second shard")
    assert "2/2 is missing" in (tmp_path / f"vtcli-filter-merge-{early}.out").read_text()
    second = submit("filter", *clean, array="2", shards="2")
    merge = submit("filter_merge", *clean, "filter.merge=2", after=second)
    for words in (["synth", *synth], ["filter", *clean]):
        command(sys.executable, "-m", "vtcli", *words, f"home={tmp_path / 'alone'}", env=env, cwd=tmp_path)
    ended([made, merge], tmp_path, env)
    here, there = ArtifactStore(tmp_path / "home"), ArtifactStore(tmp_path / "alone")
    for name in ("data:v1", "clean:v1"):
        assert here.resolve(name).digest == there.resolve(name).digest
    assert pq.read_metadata(here.resolve("clean:v1").path / "answer-train.parquet").num_rows == 3
