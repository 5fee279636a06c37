"""What a GPU cannot hold is refused before a model is loaded. The GPU is nvidia-smi's word alone."""

from __future__ import annotations

from typing import Any

import pytest

from vtcli.config import compose, machine
from vtcli.config.machine import CudaDevice
from vtcli.errors import ConfigError
from vtcli.runbook.room import require_room

CARD = ["+recipe=codev", "rl.data=x:v1"]


def values(stage: str, *argv: str) -> dict[str, Any]:
    return compose.load(
        stage, [*argv, "model=qwen2_5_vl_7b", "launch=none"]
    ).values  # one rank, unless WORLD_SIZE is set


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: (CudaDevice("NVIDIA H100 80GB HBM3", 79.6),) * 8)
    monkeypatch.setattr(machine, "memory_gib", lambda: 2048.0)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("card")
def test_rl_says_which_phase_is_too_large_and_which_keys_help() -> None:
    short = ["scale=node", *CARD, "rl.backend.offload=none"]
    with pytest.raises(ConfigError) as caught:
        require_room("rl", values("rl", *short))
    said = str(caught.value)
    for word in ("Qwen2.5-VL-7B on one GPU (NVIDIA H100 80GB HBM3, 79.6 GiB)", "learning, of 75.6 usable", "--fit"):
        assert word in said
    helps = said.partition("It would fit with: ")[2].partition(". `vtcli")[0].split()
    kept = [a for a in short if a.partition("=")[0] not in {h.partition("=")[0] for h in helps}]
    require_room("rl", values("rl", *kept, *helps))


def test_the_ranks_that_share_the_states_count(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given = values("rl", "scale=node", *CARD, "rl.backend.offload=none")
    monkeypatch.setenv("WORLD_SIZE", "8")
    require_room("rl", given)


SERVED = ["scale=gpu", *CARD, "rl.backend.sleep=false", "engine.gpu_memory=0.5"]


@pytest.mark.parametrize(
    ("servers", "ranks"),
    [
        (["engine.servers=1", "engine.gpus=[0]"], 1),
        (["engine.servers=8"], 8),  # no GPU is left, and half of each is enough to share
        (["engine.servers=1", "engine.gpus=[7]", "engine.gpu_memory=0.9"], 8),
    ],
)
def test_a_server_beside_the_learner_needs_the_room_of_an_engine_in_its_process(
    card: None, monkeypatch: pytest.MonkeyPatch, servers: list[str], ranks: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    given = [*SERVED, "engine=vllm_server", *servers, "rl.backend.offload=none"]
    with pytest.raises(ConfigError, match=r"learning, of 75\.6 usable(.|\n)*It would fit with: "):
        require_room("rl", values("rl", *given))


def test_a_server_on_gpus_of_its_own_or_elsewhere_takes_nothing_of_the_learners(
    card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "7")
    for place in ("engine.gpus=[7]", "engine.gpus=null", "engine.urls=[http://other:8000]"):
        require_room("rl", values("rl", *SERVED, "engine=vllm_server", "engine.gpu_memory=0.9", place))
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match=r"need 1 GPUs of this node, beside the learner's 8; it has 8"):
        require_room("rl", values("rl", *SERVED, "engine=vllm_server", "engine.gpu_memory=0.9"))


@pytest.mark.usefixtures("card")
def test_sft_is_refused_with_keys_of_its_own() -> None:
    given = values("sft", "scale=gpu", "+recipe=codev", "sft.backend.offload=none")
    with pytest.raises(ConfigError, match=r"GiB on each GPU to learn.*It would fit with: sft\.backend\.offload=optim"):
        require_room("sft", given)
    require_room("sft", values("sft", "scale=gpu", "+recipe=codev"))


@pytest.mark.usefixtures("card")
def test_a_user_may_know_better() -> None:
    require_room("rl", values("rl", "scale=node", *CARD, "rl.backend.offload=none", "plan.refuse=false"))
    require_room("rl", values("rl", "scale=node", *CARD, "rl.backend.offload=none", "rl.model=my/unknown"))


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("stage", ["rl", "sft"])
def test_what_the_machines_memory_cannot_hold_is_refused_with_keys_that_help(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7B on one GPU: 124 GiB (sft: 128) are offloaded or asleep, and a checkpoint's copy takes 108 GiB (sft: 101)."""
    layout = ["rl.data=x:v1", "rl.backend.zero_stage=3", "rl.backend.sleep=false", "engine.gpu_memory=0.45"]
    argv = ["scale=gpu", "+recipe=codev", *(layout if stage == "rl" else [])]
    require_room(stage, values(stage, *argv))
    monkeypatch.setattr(machine, "memory_gib", lambda: 200.0)
    with pytest.raises(ConfigError, match=r"GiB of each machine's memory: .* 10\d\.\d copy of a ch") as caught:
        require_room(stage, values(stage, *argv))
    said = str(caught.value)
    assert "of 190.0 usable" in said
    helps = said.partition("It would fit with: ")[2].replace(";", ".").partition(". ")[0].split()
    assert f"{stage}.checkpoint_beside=false" in helps
    require_room(stage, values(stage, *argv, *helps))


def test_without_a_gpu_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ())
    require_room("rl", values("rl", "scale=node", *CARD, "rl.backend.offload=none"))
