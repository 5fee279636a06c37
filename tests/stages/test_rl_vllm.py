"""``vtcli rl`` and ``vtcli eval`` on vLLM, for real; where it is not installed, nothing (``make test-vllm``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_model
from safetensors.torch import load_file
from torch import Tensor

from vtcli.families.qwen_vl import tiny
from vtcli.schema import Scored
from vtcli.store.records import read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vllm is not installed here; `make test-vllm` installs it and runs this",
    ),
]

TASKS = ("rotflip", "zoom", "read_value", "count")
COUNTS = [f"data.tasks.{task}.{split}=2" for task in TASKS for split in ("train", "validation", "test")]
REWARD = "{_target_:uneven.reward,of:{_target_:vtcli.rewards.toolsrl.stage1}}"  # else random weights earn all the same
RL = [
    *(
        "+recipe=toolsrl",
        "rl.data=data:v1",
        "rl.prompts_per_step=2",
        "rl.group_size=2",
        "rl.max_banned_mass=1",  # nothing has taught the model
        "+signals.sampled._target_=uneven.measure",
    ),
    f"rl.phases=[{{name:tools,steps:2,form:tool,reward:{REWARD}}}]",
]


TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run(home: Path, stage: str, arguments: Sequence[str], launcher: Sequence[str] = ()) -> None:
    command = [
        sys.executable,
        *launcher,
        "-m",
        "vtcli",
        stage,
        *arguments,
        "scale=tiny",
        "tracker=none",
        f"home={home}",
    ]
    here = os.pathsep.join(
        [str(Path(__file__).parents[1] / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )  # for uneven.py
    environ = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=900, cwd=home, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "MainProcess" not in done.stdout  # vLLM's own lines are not results


def rl(home: Path, engine: str, name: str, launcher: Sequence[str] = (), further: Sequence[str] = ()) -> Path:
    """Two steps; the artifact."""
    run(home, "rl", [*RL, f"rl.model={home / 'start'}", f"engine={engine}", f"name={name}", *further], launcher)
    return home / name / "v1"


def first_step(policy: Path) -> dict[tuple[str, str, int], list[tuple[int, ...]]]:
    """Tokens by sample and seed, of the trajectories of all ranks that were sampled with the weights of the start."""
    everything = [s.trajectory for log in policy.glob("trajectories*.jsonl") for s in read(log, Scored)]
    found = [t for t in everything if all(turn.version == 0 for turn in t.policy_turns)]
    return {(t.sample.id, t.sample.form, t.seed): [turn.token_ids for turn in t.policy_turns] for t in found}


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Sum of the absolute differences of all elements."""
    return sum(float((one[name].double() - other[name].double()).abs().sum()) for name in other)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model, data, and a run on transformers."""
    found = tmp_path_factory.mktemp("home")
    sizes = replace(tiny_model.SIZES, hidden_size=96, vocab_size=600, max_positions=4096)
    tiny.build(found / "start", sizes, tiny.train_tokenizer(tiny_model.TEXTS, sizes.vocab_size), seed=3)
    run(found, "synth", ["+recipe=toolsrl", "name=data", "synth.workers=1", *COUNTS])
    assert len(first_step(rl(found, "hf", "on-hf"))) == 4
    return found


@pytest.mark.parametrize(
    ("engine", "ranks"),
    [
        ("vllm", 1),
        pytest.param("vllm", 2, marks=pytest.mark.wide),
        pytest.param("vllm_server", 1, marks=pytest.mark.wide),
        ("vllm_server", 2),
    ],
)
def test_rl_on_vllm_samples_what_it_samples_on_transformers(home: Path, engine: str, ranks: int) -> None:
    policy = rl(home, engine, f"on-{engine}-{ranks}".replace("_", "-"), TWO_RANKS if ranks == 2 else ())
    assert first_step(policy) == first_step(home / "on-hf" / "v1")
    metrics = [json.loads(line) for line in (policy / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2
    for line in metrics:
        assert line["updated"] == 1
        assert line["broken"] == 0
        assert line["logprob_gap_max"] < 1e-4  # after a weight update, too


def test_two_ranks_at_zero_3_with_servers_train_what_one_rank_trains_on_transformers(home: Path) -> None:
    sharded = rl(home, "vllm_server", "sharded", TWO_RANKS, ["rl.backend.zero_stage=3"])
    assert first_step(sharded) == first_step(home / "on-hf" / "v1")
    metrics = [json.loads(line) for line in (sharded / "metrics.jsonl").read_text().splitlines()]
    assert [line["updated"] for line in metrics] == [1, 1]
    # What servers sample with the weights of an update has the probabilities that the sharded learner computes.
    assert all(line["logprob_gap_max"] < 1e-4 for line in metrics)
    folders = (home / "start", home / "on-hf" / "v1", sharded)
    start, alone, both = (load_file(folder / "model.safetensors") for folder in folders)
    assert both.keys() == alone.keys()
    # 1e-6 here. Single elements differ more: Adam divides gradients that are nearly zero by their own size.
    assert distance(both, alone) < 1e-4 * distance(alone, start)


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_eval_runs_on_vllm(home: Path, engine: str) -> None:
    asked = ["+recipe=toolsrl", f"engine={engine}", "eval.data=data:v1", "eval.model=on-hf:v1", "eval.max_samples=2"]
    run(home, "eval", [*asked, f"name=eval-{engine}".replace("_", "-")])
