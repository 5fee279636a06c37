"""What a GPU cannot hold is refused before a model is loaded. The GPU is nvidia-smi's word alone."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Iterable
from typing import Any

import pytest

from vtcli.config import compose, machine
from vtcli.config.machine import CudaDevice
from vtcli.errors import ConfigError
from vtcli.runbook import room
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


CARDS = {
    "NVIDIA GeForce RTX 3090": 24.0,
    "NVIDIA GeForce RTX 4090": 24.0,
    "NVIDIA GeForce RTX 5090": 31.8,
    "NVIDIA RTX A6000": 48.0,
    "NVIDIA RTX 6000 Ada Generation": 48.0,
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 95.6,
    "NVIDIA L4": 22.5,
    "NVIDIA L40S": 45.0,
    "NVIDIA A100-SXM4-40GB": 40.0,
    "NVIDIA A100-SXM4-80GB": 80.0,
    "NVIDIA H100 80GB HBM3": 79.6,
    "NVIDIA H200": 140.4,
    "NVIDIA B200": 179.0,
    "NVIDIA GH200 480GB": 95.6,
    "A card of tomorrow": 36.0,
    "Tesla T4": 15.0,
}
RECIPES = [name for name in compose.options("recipe") if not name.startswith("tiny_")]
load = functools.cache(lambda stage, words: compose.load(stage, words))


def unfit(card: str, count: int, recipe: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong with the answers for so many of a card: each scale is accepted, or refused with words that make it
    fit; auto takes the largest that is accepted."""
    monkeypatch.setattr(machine, "gpus", lambda: (CudaDevice(card, CARDS[card]),) * count)
    argv, accepted, wrong = [f"+recipe={recipe}", "rl.data=x:v1"], list[str](), list[str]()
    for scale in machine.possible_scales():
        try:
            room.require_room("rl", room.compose.load("rl", [*argv, f"scale={scale}"]).values, argv)
            accepted.append(scale)
        except ConfigError as refused:
            words = str(refused).partition("It would fit with: ")[2].partition(". `vtcli")[0].split()
            scaled = [] if any(word.startswith("scale=") for word in words) else [f"scale={scale}"]
            named = [word for word in words if word.startswith("scale=")]
            others = [word for word in words if not word.startswith("scale=")]
            again = room.compose.load("rl", [*argv, *others, *scaled, *named]).values
            if not words or room.refusal("rl", again) is not None:
                wrong.append(f"{count} x {card} {recipe} {scale}: {refused}")
    chosen, why = room.with_scale("rl", argv)
    if accepted and chosen[-1] != f"scale={accepted[0]}":
        wrong.append(f"{count} x {card} {recipe}: {accepted} would fit, and auto is {chosen[-1]}")
    if accepted and f"so {chosen[-1]}" not in str(why):
        wrong.append(f"{count} x {card} {recipe}: {why}")
    return wrong


def cards(monkeypatch: pytest.MonkeyPatch, names: Iterable[str], counts: Iterable[int], recipes: Iterable[str]) -> None:
    monkeypatch.setattr(room, "compose", types.SimpleNamespace(load=lambda stage, words: load(stage, tuple(words))))
    monkeypatch.setattr(machine, "memory_gib", lambda: 512.0)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    product = itertools.product(names, counts, recipes)
    wrong = [line for card, count, recipe in product for line in unfit(card, count, recipe, monkeypatch)]
    assert not wrong, "\n".join(wrong)


def test_all_stages_of_a_recipe_get_the_scale_at_which_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, evaluations and servers have the pixels and lengths of the model. Without a recipe a stage fits itself."""
    monkeypatch.setattr(room, "compose", types.SimpleNamespace(load=lambda stage, words: load(stage, tuple(words))))
    monkeypatch.setattr(room.compose, "MISSING", compose.MISSING, raising=False)
    monkeypatch.setattr(machine, "memory_gib", lambda: 512.0)
    monkeypatch.setattr(machine, "gpus", lambda: (CudaDevice("NVIDIA GeForce RTX 4090", 24.0),))
    words = {"synth": [], "filter": [], "sft": ["sft.data=x:v1"], "rl": ["rl.data=x:v1"], "eval": [], "serve": []}
    found = {stage: room.with_scale(stage, ["+recipe=toolsrl", *each])[0][-1] for stage, each in words.items()}
    assert set(found.values()) == {"scale=small"}, found
    assert room.with_scale("eval", ["eval.model=qwen"])[0][-1] == "scale=gpu"


def test_cards_that_compute_no_bfloat16_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_gib", lambda: 512.0)
    monkeypatch.setattr(machine, "gpus", lambda: (CudaDevice("Quadro RTX 8000", 48.0),))
    argv = ["+recipe=toolsrl", "rl.data=x:v1", "scale=small"]
    for capability, refused in ((7.5, True), (8.6, False), (None, False)):
        monkeypatch.setattr(machine, "compute_capability", lambda found=capability: found)
        lacks = room.refusal("rl", load("rl", tuple(argv)).values)
        assert (lacks is not None and "bfloat16 needs 8" in lacks.lacks) == refused


def test_a_card_is_accepted_or_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, ["NVIDIA L4", "NVIDIA RTX A6000", "Tesla T4"], [1, 8], ["toolsrl", "codevision"])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_so_is_every_card_for_every_recipe(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    cards(monkeypatch, CARDS, [count], RECIPES)


def test_an_evaluation_needs_room_for_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_gib", lambda: 64.0)
    given = ["scale=gpu", "+recipe=codev", "eval.model=Qwen/Qwen2.5-VL-7B-Instruct"]

    def require(memory: float, count: int, *more: str) -> None:
        monkeypatch.setattr(machine, "gpus", lambda: (CudaDevice("A card", memory),) * count)
        room.require_room("eval", compose.load("eval", [*given, *more]).values)

    require(48.0, 1)
    with pytest.raises(ConfigError, match=r"for the engine(.|\n)*It would fit with: engine\.gpu_memory=0\.9\."):
        require(24.0, 1)
    require(24.0, 1, "engine.gpu_memory=0.9")
    with pytest.raises(ConfigError, match=r"No layout of it fits there: give a smaller model"):
        require(15.0, 1)
    with pytest.raises(ConfigError, match=r"engine\.gpu_memory=0\.9 engine\.tensor_parallel=2\."):
        require(15.0, 2)
    require(15.0, 2, "engine.gpu_memory=0.9", "engine.tensor_parallel=2")
    require(15.0, 1, "eval.policy=endpoint")
