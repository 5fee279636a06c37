"""``vtcli rl`` and ``vtcli eval`` on vLLM, for real; where it is not installed, nothing (``make test-vllm``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_model

from vtcli.engines import tiny
from vtcli.records import read
from vtcli.schema import Scored

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
        "+signals.sampled._target_=uneven.measure",
    ),
    f"rl.phases=[{{name:tools,steps:2,form:tool,reward:{REWARD}}}]",
]


def run(home: Path, stage: str, arguments: Sequence[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "vtcli",
        stage,
        *arguments,
        "scale=tiny",
        "tracker=none",
        f"home={home}",
    ]
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])  # for uneven.py
    environ = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=500, cwd=home, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "MainProcess" not in done.stdout  # vLLM's own lines are not results


def first_step(log: Path) -> dict[tuple[str, str, int], list[tuple[int, ...]]]:
    """Tokens by sample and seed, of the trajectories that were sampled with the weights of the start."""
    found = [s.trajectory for s in read(log, Scored) if all(t.version == 0 for t in s.trajectory.policy_turns)]
    return {(t.sample.id, t.sample.form, t.seed): [turn.token_ids for turn in t.policy_turns] for t in found}


def test_rl_and_eval_run_on_vllm_and_sample_what_they_sample_on_transformers(tmp_path: Path) -> None:
    base = tmp_path / "start"
    sizes = replace(tiny_model.SIZES, hidden_size=96, vocab_size=600, max_positions=4096)
    tiny.build(base, sizes, tiny.train_tokenizer(tiny_model.TEXTS, sizes.vocab_size), seed=3)
    run(tmp_path, "synth", ["+recipe=toolsrl", "name=data", "synth.workers=1", *COUNTS])
    for engine in ("hf", "vllm"):
        run(tmp_path, "rl", [*RL, f"rl.model={base}", f"engine={engine}", f"name=on-{engine}"])
    one, other = tmp_path / "on-hf" / "v1", tmp_path / "on-vllm" / "v1"
    expected = first_step(one / "trajectories.jsonl")
    assert len(expected) == 4
    assert first_step(other / "trajectories.jsonl") == expected
    metrics = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2
    for line in metrics:
        assert line["updated"] == 1
        assert line["broken"] == 0
        assert line["logprob_gap_max"] < 1e-4  # after a weight update, too
    evaluation = ["+recipe=toolsrl", "engine=vllm", "eval.data=data:v1", "eval.model=on-vllm:v1", "eval.max_samples=2"]
    run(tmp_path, "eval", evaluation)
