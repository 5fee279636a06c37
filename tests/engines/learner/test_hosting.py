"""States in host memory between steps: the same losses and weights bit for bit, with real DeepSpeed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_model
from cases import each_case
from tiny_learner import OPTIM, copy, learner, rl_rows, same, save

from vtcli.algo.losses import LossConfig
from vtcli.algo.optim import Backend, Lora
from vtcli.errors import EngineError
from vtcli.store.checkpoints import Checkpoints

LAYOUTS = [
    pytest.param({"zero_stage": 1}, marks=pytest.mark.wide),
    pytest.param({"zero_stage": 2, "dtype": "bfloat16"}, marks=[pytest.mark.slow, pytest.mark.wide]),
    pytest.param({"zero_stage": 2, "dtype": "bfloat16", "offload": "optimizer"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_learner_that_sleeps_between_steps_learns_the_same_bit_for_bit(layout, tmp_path):
    rows = rl_rows()
    plain, sleeper = (learner(batch_tokens=150, **layout) for _ in range(2))
    sleeper.sleep()  # before its first step, as for an engine that is opened
    for step in range(2):
        sleeper.wake()
        assert sleeper.step(rows) == plain.step(rows)
        sleeper.sleep(weights=False)
        same(copy(sleeper.weights()), plain.weights(), 0)
        sleeper.sleep()
        if step == 0:  # a checkpoint between two sleeps
            sleeper.wake()
            save(sleeper, Checkpoints(tmp_path, []), 1)
            sleeper.sleep()
    sleeper.wake()
    found = Checkpoints(tmp_path, []).resume()
    assert found is not None
    sleeper.load_checkpoint(found[1])
    sleeper.sleep()
    sleeper.wake()
    sleeper.step(rows)
    same(copy(sleeper.weights()), plain.weights(), 0)


@pytest.mark.slow
def test_frozen_parameters_and_the_reference_leave_too():
    rows, loss = rl_rows(), LossConfig(kl_coef=0.1)
    optim = replace(OPTIM, lora=Lora(rank=2))  # all but the adapters is frozen
    plain, sleeper = (learner(optim, reference=tiny_model.model(), zero_stage=2) for _ in range(2))
    for _ in range(2):
        sleeper.sleep()
        sleeper.wake()
        assert sleeper.step(rows, loss) == plain.step(rows, loss)


@pytest.mark.slow
def test_every_tensor_of_the_states_is_elsewhere_while_it_sleeps():
    """Without a GPU both places are host memory: that a tensor has moved shows in its address."""
    trained = learner(zero_stage=2)
    trained.step(rl_rows())
    zero = trained.engine.optimizer
    places = lambda: [t.data_ptr() for t in [*zero.single_partition_of_fp32_groups, *zero.bit16_groups_flat]]  # noqa: E731
    before = places()
    trained.sleep()
    assert all(old != new for old, new in zip(before, places(), strict=True))
    assert {state.value for state in zero.offloaded_states} == {"hp_params", "lp_params", "lp_grads", "optim_states"}


@pytest.mark.slow
def test_a_sleeping_learner_refuses_work(tmp_path):
    trained = learner(zero_stage=2)
    trained.sleep(weights=False)
    assert trained.weights()
    trained.sleep()
    for work in (
        lambda: trained.step(rl_rows()),
        lambda: trained.logprobs(tiny_model.rows()),
        trained.weights,
        lambda: trained.save_checkpoint(tmp_path),
        lambda: trained.load_checkpoint(tmp_path),
    ):
        with pytest.raises(EngineError, match=r"the learner sleeps"):
            work()
    trained.wake()
    trained.wake()
    trained.step(rl_rows())


@each_case("stage", [0, 3])
def test_layouts_whose_states_cannot_move_are_refused(stage):
    with pytest.raises(ValueError, match=r"sleep=true needs zero_stage 1 or 2"):
        Backend(sleep=True, zero_stage=stage)
