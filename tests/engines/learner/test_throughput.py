"""Speed of a step by hand; peaks of devices by the names that torch gives them."""

from __future__ import annotations

import pytest
import torch
from cases import each_case
from tiny_learner import learner, rl_rows

from vtcli.algo.losses import LossConfig
from vtcli.engines.learner import throughput as module
from vtcli.engines.learner.throughput import peak_flops, peak_memory, throughput
from vtcli.engines.phases import Phases


def test_tokens_per_second_and_utilisation_by_hand():
    assert throughput(1000, 2.0, 10**9, 1, 1e13) == {"time/learn_tokens_per_s": 500.0, "time/mfu": pytest.approx(0.3)}
    assert throughput(1000, 2.0, 10**9, 4, 1e13)["time/mfu"] == pytest.approx(0.075)
    assert throughput(1000, 2.0, 10**9, 1, None) == {"time/learn_tokens_per_s": 500.0}
    assert throughput(0, 2.0, 10**9, 1, 1e13) == {}  # a step that was skipped


@each_case(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H200", "float32", 67e12),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA GH200 480GB", "bfloat16", 989e12),
        ("NVIDIA L40S", "bfloat16", 362e12),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165e12),
        ("Quadro RTX 6000", "bfloat16", None),
    ],
)
def test_a_device_is_known_by_its_name(name, dtype, peak):
    assert peak_flops(name, dtype) == peak


class Device:
    """One GPU of 80 GiB, by the calls of torch's that count memory. vLLM's allocator unmaps pages behind torch's back:
    they stay reserved, and the driver has them free."""

    def __init__(self) -> None:
        self.reserved = self.peak = self.unmapped = 0

    def take(self, gib: int) -> None:
        self.reserved += gib
        self.peak = max(self.peak, self.reserved)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = {
            "is_available": lambda: True,
            "mem_get_info": lambda: ((80 - self.reserved + self.unmapped) * 2**30, 80 * 2**30),
            "max_memory_reserved": lambda: self.peak * 2**30,
            "memory_reserved": lambda: self.reserved * 2**30,
            "reset_peak_memory_stats": lambda: setattr(self, "peak", self.reserved),
        }
        for name, call in calls.items():
            monkeypatch.setattr(module.torch.cuda, name, call)


def test_without_a_gpu_there_is_no_memory_to_tell():
    assert peak_memory("learn") == {} or torch.cuda.is_available()


def test_a_sleeping_engine_does_not_count_while_the_learner_works(monkeypatch):
    device = Device()
    device.install(monkeypatch)
    device.take(6)  # the learner's weights

    class Policy:
        version = 0

        def sleep(self):
            device.unmapped = 60  # of 64: the rest it keeps

    class Learner:
        def wake(self):
            device.take(12)
            device.take(-2)

    phases = Phases(Policy(), Learner(), engine_sleeps=True, learner_sleeps=True, measure=peak_memory)
    device.take(64)
    device.take(3)  # a workspace that is given back
    device.take(-3)
    phases.learn()
    assert phases.peaks == {"memory/rollout_gib": 73.0}
    device.take(25)
    device.take(-15)
    assert peak_memory("learn") == {"memory/learn_gib": 6 + 4 + 10 + 25}  # neither the 60, nor the peak of the change


def test_an_update_counts_the_tokens_of_the_rows_that_it_trains_on():
    rows, trained = rl_rows(), learner(batch_tokens=150)
    metrics = trained.update([rows[:2], rows[2:]], LossConfig())
    assert metrics["row_tokens"] == sum(len(row.token_ids) for row in rows)
    assert trained.weight_count == sum(p.numel() for p in trained.module.model.parameters())
    assert trained.skip()["row_tokens"] == 0
