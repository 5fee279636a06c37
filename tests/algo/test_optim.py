"""Settings of the optimiser: the warm-up as a number of steps, or as a share of them."""

from __future__ import annotations

import itertools
from typing import get_args, get_type_hints

import pytest
from cases import each_case

from vtcli.algo.losses import LossConfig, refuse_wide_clip
from vtcli.algo.optim import Backend, Optim, learning_rate
from vtcli.config.bounds import OutOfBounds
from vtcli.errors import ConfigError


@each_case(
    ("steps", "warmup"),
    [(797, 40), (7805, 391), (79, 4), (78, 4)],  # 5 % of CodeDance's, CodeV's and CodeVision's steps, rounded up
)
def test_a_share_follows_the_number_of_rows(steps: int, warmup: int) -> None:
    """A share of 0.05 of 79 steps is 3.95, so 4: the rates are 1/4, 2/4, 3/4 and 4/4 of the whole."""
    share, whole = Optim(lr=1.0, warmup_steps=0.05), Optim(lr=1.0, warmup_steps=warmup)
    assert [learning_rate(share, s, steps) for s in range(steps)] == [
        learning_rate(whole, s, steps) for s in range(steps)
    ]
    assert learning_rate(share, 0, steps) == pytest.approx(1 / warmup)
    assert learning_rate(share, warmup - 1, steps) == 1.0 > learning_rate(share, warmup - 2, steps)


def test_a_share_that_gives_whole_steps_is_not_rounded_up() -> None:
    """0.07 of 100 is 7.000000000000001 in floats."""
    assert learning_rate(Optim(lr=1.0, warmup_steps=0.07), 6, 100) == 1.0


def test_a_share_of_the_schedule_that_follows_by_hand() -> None:
    """4 steps, half of them warm-up: 1/2, 1, then linearly from 1 down: 1, 1/2."""
    optim = Optim(lr=1.0, schedule="linear", warmup_steps=0.5)
    assert [learning_rate(optim, s, 4) for s in range(4)] == pytest.approx([0.5, 1.0, 1.0, 0.5])


@each_case("wrong", [1.5, -0.1])
def test_neither_a_share_nor_a_number_of_steps(wrong: float) -> None:
    with pytest.raises(OutOfBounds, match="warmup_steps"):
        Optim(warmup_steps=wrong)


def test_the_combinations_of_settings_that_deepspeed_can_run() -> None:
    """By ZeRO stage: the types of numbers, what may be in host memory, and whether states may leave the device."""
    can = {
        0: (["float32"], ["none"], [False]),
        1: (["float32"], ["none", "optimizer"], [False, True]),
        2: (["float32", "bfloat16"], ["none", "optimizer"], [False, True]),
        3: (["float32", "bfloat16"], ["none", "optimizer", "weights"], [False]),
    }
    hints = get_type_hints(Backend)
    stages, dtypes, offloads = (get_args(hints[name]) for name in ("zero_stage", "dtype", "offload"))
    taken: set[tuple[object, ...]] = set()
    for stage, dtype, offload, sleep in itertools.product(stages, dtypes, offloads, (False, True)):
        try:
            Backend(zero_stage=stage, dtype=dtype, offload=offload, sleep=sleep)
        except ValueError:
            continue
        taken.add((stage, dtype, offload, sleep))
    assert taken == {(stage, *row) for stage, rows in can.items() for row in itertools.product(*rows)}


def test_a_row_longer_than_a_micro_batch_is_refused_with_both_numbers() -> None:
    backend = Backend(batch_tokens=100)
    backend.require_whole_rows(100)
    with pytest.raises(ConfigError, match=r"batch_tokens=100 .*max_tokens=101"):
        backend.require_whole_rows(101)


@each_case(
    ("ratio", "low", "high", "refused"),
    [
        ("sequence", 0.2, 4e-4, True),
        ("sequence", 3e-4, 0.28, True),
        ("sequence", 3e-4, 4e-4, False),
        ("token", 0.2, 0.28, False),
    ],
)
def test_a_clip_of_tokens_is_refused_for_the_ratio_of_a_sequence(ratio, low, high, refused) -> None:
    loss = LossConfig(ratio=ratio, clip_low=low, clip_high=high)
    if not refused:
        return refuse_wide_clip(loss)
    with pytest.raises(OutOfBounds, match=r"loss\.ratio"):
        refuse_wide_clip(loss)
