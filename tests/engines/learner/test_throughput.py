"""Speed of a step by hand; peaks of devices by the names that torch gives them."""

from __future__ import annotations

import pytest
import torch
from tiny_learner import learner, rl_rows

from vtcli.algo.losses import LossConfig
from vtcli.engines.learner import throughput as module
from vtcli.engines.learner.throughput import peak_flops, peak_memory, throughput


def test_tokens_per_second_and_utilisation_by_hand():
    assert throughput(1000, 2.0, 10**9, 1, 1e13) == {"time/learn_tokens_per_s": 500.0, "time/mfu": pytest.approx(0.3)}
    assert throughput(1000, 2.0, 10**9, 4, 1e13)["time/mfu"] == pytest.approx(0.075)
    assert throughput(1000, 2.0, 10**9, 1, None) == {"time/learn_tokens_per_s": 500.0}
    assert throughput(0, 2.0, 10**9, 1, 1e13) == {}  # a step that was skipped


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H200", "float32", 67e12),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA L40S", "bfloat16", 362e12),
        ("NVIDIA GeForce RTX 4090", "bfloat16", None),
    ],
)
def test_a_device_is_known_by_its_name(name, dtype, peak):
    assert peak_flops(name, dtype) == peak


def test_memory_is_that_of_the_phase(monkeypatch):
    assert peak_memory("learn") == {} or torch.cuda.is_available()
    resets = []
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "max_memory_reserved", lambda: 3 * 2**30)
    monkeypatch.setattr(module.torch.cuda, "reset_peak_memory_stats", lambda: resets.append(1))
    assert peak_memory("rollout") == {"memory/rollout_gib": 3.0}
    assert resets == [1]


def test_an_update_counts_the_tokens_of_the_rows_that_it_trains_on():
    rows, trained = rl_rows(), learner(batch_tokens=150)
    metrics = trained.update([rows[:2], rows[2:]], LossConfig())
    assert metrics["row_tokens"] == sum(len(row.token_ids) for row in rows)
    assert trained.weight_count == sum(p.numel() for p in trained.module.model.parameters())
    assert trained.skip()["row_tokens"] == 0
