"""A folder against plain transformers, and folders that ``vtcli doctor --parity`` refuses with one error."""

from __future__ import annotations

import json
import re
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import each_case
from tiny_family import SIZES, tiny_family
from tiny_generic import ONE_OFTEN, tiny_generic

from vtcli.algo.parity import Gaps
from vtcli.cli.doctor import doctor
from vtcli.engines import hf, parity
from vtcli.engines.hf import load_model
from vtcli.engines.plain import plain_gaps, require_plain, template_tokens
from vtcli.engines.policies import Engine
from vtcli.errors import EngineError, InputError

TINY = tiny_family("qwen2_vl")


@each_case("name", SIZES)
def test_every_family_writes_the_ids_of_its_template(name: str) -> None:
    assert template_tokens(tiny_family(name).family) > 20


def copy(tmp_path: Path) -> Path:
    shutil.copytree(TINY.family.folder, tmp_path / "model")
    return tmp_path / "model"


@each_case(
    ("changed", "told"),
    [
        (("<|im_end|>\n", "<|im_end|>"), r"differs from Qwen2-VL's at token \d+: it writes '<\|im_start\|>.*' where"),
        (("message['role']", "message['role'].nothing.more"), r"chat template of .* fails on a question with images"),
    ],
)
def test_another_template_is_refused(tmp_path: Path, changed: tuple[str, str], told: str) -> None:
    path = copy(tmp_path) / "chat_template.jinja"
    text = path.read_text()
    assert changed[0] in text
    path.write_text(text.replace(*changed))
    with pytest.raises(InputError, match=told):
        template_tokens(replace(TINY.family, folder=path.parent))


def test_a_folder_without_a_template_is_not_compared(tmp_path: Path) -> None:
    path = copy(tmp_path) / "chat_template.jinja"
    path.unlink()
    assert template_tokens(replace(TINY.family, folder=path.parent)) == 0


def test_log_probabilities_of_another_model_are_found() -> None:
    plain, rows = TINY.reference(), TINY.rows()[:3]
    known = [TINY.expected(plain, row).tolist() for row in rows]
    require_plain(plain_gaps(TINY.family, "float32", rows, known, TINY.store.view), "float32")
    known[2][0] += 0.01
    with pytest.raises(
        EngineError, match=r"transformers' own forward pass disagree \(float32, \d+ tokens\): .*0\.01, at"
    ):
        require_plain(plain_gaps(TINY.family, "float32", rows, known, TINY.store.view), "float32")


@pytest.mark.slow
def test_the_engines_are_gone_before_transformers_own_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[weakref.ref[Any]] = []

    def load(*given: Any) -> Any:
        loaded.append(weakref.ref(model := load_model(*given)))
        return model

    def gaps(*given: Any) -> Gaps:
        assert [each() for each in loaded] == [None, None]  # of policy and learner
        return plain_gaps(*given)

    monkeypatch.setattr(hf, "load_model", load)
    monkeypatch.setattr(parity, "plain_gaps", gaps)
    assert parity.check(TINY.family, Engine(), "bfloat16").plain is not None


@pytest.mark.parametrize("name", ONE_OFTEN)
def test_folders_that_are_read_by_their_processor_are_compared_with_transformers_too(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On rows with large images: these miniatures take rows of 4096 tokens."""
    doctor(parity=str(tiny_generic(name).family.folder))
    told = capsys.readouterr().out
    assert "ids of prompts and of a conversation, with images, are equal to those of the folder's own processor" in told
    assert "learner (rows one by one) and transformers' forward (each alone) agree in float32" in told
    assert int(re.findall(r"several turns +(\d+) tokens", told)[0]) > 3500


def test_an_image_that_the_learner_reads_otherwise_is_found() -> None:
    tiny = tiny_generic("internvl")
    plain, row = tiny.reference(), tiny.rows()[2]
    with torch.no_grad():
        known = [tiny.expected(plain, row).tolist()]
    assert plain_gaps(tiny.family, "float32", [row], known, tiny.store.view).largest < 1e-5
    dark = plain_gaps(tiny.family, "float32", [row], known, lambda ref: tiny.store.view(ref) // 2)
    with pytest.raises(EngineError, match="transformers' own forward pass disagree"):
        require_plain(dark, "float32")


def text_only(folder: Path) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_markers(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|vision_start|>", "<|somewhere|>"))


def processor_of_qwen3(folder: Path) -> None:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"patch_size": 16}))


@each_case(
    ("spoil", "told"),
    [
        (text_only, r"holds a text-only model \(qwen3\)"),
        (cut, r"cannot load a Qwen2-VL model from .*whole: copy or download the folder again"),
        (without_weights, r"cannot load a Qwen2-VL model from .*whole: copy or download the folder again"),
        (without_markers, r"tokenizer\.json has no <\|vision_start\|>: expected a tokenizer of the Qwen2-VL family"),
        (processor_of_qwen3, r"is not the processor of Qwen2-VL: patch_size is 16, expected 14"),
    ],
)
def test_a_bad_folder_is_one_error_before_anything_is_sampled(
    tmp_path: Path, spoil: Callable[[Path], None], told: str
) -> None:
    folder = copy(tmp_path)
    spoil(folder)
    with pytest.raises(InputError, match=told):
        doctor(parity=str(folder))
