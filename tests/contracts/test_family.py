"""One contract over every family of models: a tiny version is built, opened, loaded, sampled from and learnt with."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_generic
import tiny_model
from cases import each_case

from vtcli.algo.optim import Backend, Optim
from vtcli.engines import parity, probes
from vtcli.engines.hf import HfPolicy, load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner, export
from vtcli.engines.vllm.start import tensors
from vtcli.errors import ConfigError, InputError
from vtcli.families.family import Family
from vtcli.families.generic.family import GenericVL
from vtcli.families.qwen_vl.family import Qwen25VL
from vtcli.families.table import FAMILIES, find_family, for_environment, in_environment, open_family
from vtcli.rollout.threads import EventLoop
from vtcli.schema import ImageRef
from vtcli.store.images import ImageLimits

SIZES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        **{"vocab_size": 420, "hidden_size": 48, "layers": 2, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 1, "vision_heads": 2, "vision_intermediate_size": 48},
    },
    "qwen2_vl": {
        **{"vocab_size": 420, "hidden_size": 48, "layers": 2, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 2, "vision_heads": 2, "vision_intermediate_size": 64},
    },
    "qwen3_vl": {
        **{"vocab_size": 420, "hidden_size": 48, "layers": 3, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 3, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"vision_positions": 36, "vision_deepstack": 2, "initializer_range": 0.1},
    },
    "qwen3_vl_moe": {
        **{"vocab_size": 420, "hidden_size": 48, "layers": 3, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 3, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"vision_positions": 36, "vision_deepstack": 2, "initializer_range": 0.1},
        **{"experts": 4, "experts_per_token": 2, "expert_intermediate_size": 32},
    },
    "qwen3_5": {
        **{"vocab_size": 420, "hidden_size": 48, "layers": 3, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 2, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"vision_positions": 36, "initializer_range": 0.1, "attention_every": 2},
        **{"linear_heads": 1, "linear_value_heads": 2, "linear_size": 16},
    },
    "qwen3_5_moe": {
        **{"vocab_size": 420, "hidden_size": 48, "layers": 2, "heads": 3, "kv_heads": 1},
        **{"vision_hidden_size": 32, "vision_depth": 2, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"vision_positions": 36, "initializer_range": 0.1, "attention_every": 2},
        **{"linear_heads": 1, "linear_value_heads": 2, "linear_size": 16},
        **{"experts": 4, "experts_per_token": 2, "expert_intermediate_size": 32},
    },
}
"""Of the smallest version of each family; one that is missing here fails the first test."""
TALK = [
    {"role": "system", "content": "Look closely."},
    {"role": "user", "content": "<image>What is it?"},
    {"role": "assistant", "content": "It is there."},
]


class Unpacked(Qwen25VL):
    """The same numbers by transformers' own attention and cache, one row at a time."""

    packs = False


@pytest.fixture(scope="module", params=[*FAMILIES, *tiny_generic.ONE_OFTEN, "unpacked"])
def family(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Family:
    if request.param in tiny_generic.BUILD:
        return tiny_generic.tiny_generic(request.param).family
    kind = Unpacked if request.param == "unpacked" else find_family(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "model"
    sizes = kind.Architecture(**SIZES["qwen2_5_vl" if request.param == "unpacked" else request.param])
    kind.build(folder, sizes, [TALK] * 3, 3)
    return kind.open(folder)


def picture(family: Family, nth: int) -> ImageRef:
    return probes.probe(nth, family)


def test_the_tiny_version_is_found_again_by_its_config(family: Family) -> None:
    found = open_family(family.folder)
    assert isinstance(family, type(found))
    assert found.chat.banned_ids == family.chat.banned_ids
    assert found.max_tokens > 0


def test_a_view_keeps_its_size_and_has_as_many_placeholders_as_features(family: Family) -> None:
    sizing = pickle.loads(pickle.dumps(family.sizing(ImageLimits(3136, 1_000_000))))
    height, width = sizing(333, 777)
    assert sizing(height, width) == (height, width)
    ref = picture(family, 0)
    ids = family.chat.prompt("Look closely.", "<image>What is it?", [ref])
    assert ids.count(family.chat.image_pad) == family.chat.image_tokens(ref) > 0
    family.chat.check_images(ids, [ref])
    with pytest.raises(InputError, match="image placeholders but"):
        family.chat.check_images(ids, [])
    assert family.chat.image_pad in family.chat.banned_ids
    assert not set(family.chat.end_ids) & set(family.chat.banned_ids)


def test_positions_belong_to_tokens_and_a_longer_row_only_adds_to_them(family: Family) -> None:
    ref = picture(family, 3)
    ids = family.chat.prompt("", "<image>What is it?", [ref])
    found, following = family.positions(ids, [ref])
    assert found.shape[1] == len(ids)
    more = (*ids, *family.chat.encode_turn("It is there."))
    longer, _ = family.positions(more, [ref])
    assert np.array_equal(longer[:, : len(ids)], found)
    assert (longer[:, len(ids)] == following).all()


def test_a_skeleton_has_the_tensors_of_the_model(family: Family) -> None:
    model = load_model(family)
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert tensors(family) == own
    vision = {id(p) for module in family.vision(model) for p in module.parameters()}
    names = {name for name, p in model.named_parameters() if id(p) in vision}
    assert names
    assert not [name for name in names if f".{family.language_model}." in name]
    assert len(names) < len(dict(model.named_parameters()))


def test_policy_and_learner_agree_on_rows_of_every_kind(family: Family) -> None:
    view = probes.probing(lambda ref: tiny_model.store().view(ref))
    learner = DeepSpeedLearner(load_model(family), family, view, optim=Optim(), backend=Backend(), total_steps=1)
    with EventLoop() as loop:
        policy = HfPolicy(load_model(family), family, view)
        found = parity.ParityCheck(policy, learner, family, view).run(loop)
    assert [a.images for a in found] == [0, 1, 2, 2, 4]
    parity.require(found, "float32")


def test_rows_one_by_one_have_the_log_probabilities_of_packed_ones() -> None:
    @cache
    def known(kind: type[Qwen25VL]) -> list[list[float]]:
        own = kind.open(tiny_model.folder())
        view = tiny_model.store().view
        made = DeepSpeedLearner(load_model(own), own, view, optim=Optim(), backend=Backend(), total_steps=1)
        return made.logprobs(tiny_model.rows())

    packed, alone = known(Qwen25VL), known(Unpacked)
    assert len(packed) == len(alone)
    for one, values in zip(alone, packed, strict=True):
        assert one == pytest.approx(values, abs=1e-5)


def test_what_is_exported_opens_as_the_same_family(family: Family, tmp_path: Path) -> None:
    export(load_model(family), family.folder, tmp_path / "out")
    again = type(family).open(tmp_path / "out")
    assert tensors(again) == tensors(family)
    assert isinstance(family, type(open_family(tmp_path / "out")))


def test_vllm_gets_an_image_by_one_placeholder_and_may_not_resize_it(family: Family) -> None:
    if isinstance(family, GenericVL) and family.config.model_type == "gemma3":
        with pytest.raises(InputError, match="use engine=hf"):
            family.vllm.arguments(5, 400, 10**6)
        return
    refs = [picture(family, 1), picture(family, 2)]
    ids = family.chat.prompt("", "<image><image>What is it?", refs)
    folded = family.vllm.prompt(ids, refs)
    assert folded.count(family.chat.image_pad) == 2
    assert len(ids) - len(folded) >= sum(family.chat.image_tokens(ref) - 1 for ref in refs)
    given = family.vllm.arguments(5, 400, 10**6)
    assert given["limit_mm_per_prompt"]["image"]["count"] == 5
    # What is read through the model's own processor is resized by it, in the learner and in vLLM.
    assert given.get("mm_processor_kwargs") or isinstance(family, GenericVL)


# -- the table ---------------------------------------------------------------------------------------------------------


def test_an_unknown_type_is_one_error_that_says_how_to_add_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "brand_new_vl"}))
    told = (
        r"model_type 'brand_new_vl'; known: .*qwen2_5_vl, .*qwen2_vl, .*qwen3_vl.*\..*"
        r"\+families\.brand_new_vl=mypkg\.family\.MyFamily"
    )
    with pytest.raises(ConfigError, match=told):
        open_family(tmp_path)


def test_a_text_only_model_is_refused_as_such(tmp_path: Path) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"text-only model \(qwen3\).*of a known kind: .*qwen2_5_vl, .*qwen3_vl"):
        open_family(tmp_path)


@each_case(
    ("path", "told"),
    [
        ("nowhere.family.Mine", r"families\.mine: there is no module 'nowhere\.family'.*PYTHONPATH"),
        (
            "vtcli.families.table.FAMILIES",
            "'vtcli.families.table.FAMILIES' is not a family: .*with open, sizing, build",
        ),
        ("Mine", "'Mine' is not a family"),
    ],
)
def test_a_path_that_leads_to_no_family_is_one_error(path: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        find_family("mine", {"mine": path})


def test_a_class_without_every_member_of_a_family_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for member in ("prepare", "vision"):
        monkeypatch.setattr(f"{FAMILIES['qwen2_5_vl']}.{member}", None)
    with pytest.raises(ConfigError, match=r"is not a family: .*, with prepare, vision\."):
        find_family("mine", {"mine": FAMILIES["qwen2_5_vl"]})


@each_case("content", [None, "{", "[]", "{}"])
def test_a_folder_that_does_not_say_what_it_is_is_one_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    why = r" \(there is no config\.json in " if content is None else ""
    with pytest.raises(InputError, match=rf"config\.json does not say what model it is{why}"):
        open_family(tmp_path)


def test_other_processes_are_told_of_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    told = for_environment(tiny_model.family())
    monkeypatch.setenv("VTCLI_FAMILIES", told)
    assert in_environment() == {"qwen2_5_vl": FAMILIES["qwen2_5_vl"]}
    monkeypatch.setenv("VTCLI_FAMILIES", "[")
    with pytest.raises(ConfigError, match=r"VTCLI_FAMILIES='\[': expected JSON"):
        in_environment()
