"""Qwen2-VL: its vision tower against transformers', folders of its relatives, sizes that cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_family import tiny_family

from vtcli.config.bounds import OutOfBounds
from vtcli.engines.hf import load_model
from vtcli.errors import InputError
from vtcli.families import varlen
from vtcli.families.qwen_vl.sizes import TinyQwen2
from vtcli.families.table import open_family

TINY = tiny_family("qwen2_vl")
GRIDS = [(1, 18, 14), (1, 2, 2), (1, 4, 22), (1, 18, 14)]


def pixels() -> torch.Tensor:
    count = sum(height * width for _, height, width in GRIDS)
    return torch.randn(count, TINY.family.patches.row, generator=torch.Generator().manual_seed(1))


def test_features_and_gradients_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours, calls = TINY.reference(), load_model(TINY.family), []
    expected = torch.cat(list(plain.model.get_image_features(pixels(), torch.tensor(GRIDS)).pooler_output))
    attend = varlen.attend
    monkeypatch.setattr(varlen, "attend", lambda *a, **k: calls.append(len(a[3].queries) - 1) or attend(*a, **k))
    found = TINY.family.tower(ours, pixels(), GRIDS)
    assert calls == [len(GRIDS)] * 2  # a block attends once, to whole images
    assert [len(features) for features in found] == [height * width // 4 for _, height, width in GRIDS]
    torch.testing.assert_close(torch.cat(list(found)), expected, atol=1e-5, rtol=1e-5)
    (torch.cat(list(found)) ** 2).sum().backward()
    (expected**2).sum().backward()
    own = dict(ours.model.visual.named_parameters())
    for name, parameter in plain.model.visual.named_parameters():
        largest = float(parameter.grad.abs().max())
        torch.testing.assert_close(own[name].grad, parameter.grad, atol=1e-4 * largest, rtol=1e-4)


def test_a_conversation_has_a_system_turn_even_without_a_system_prompt() -> None:
    chat = TINY.family.chat
    text = chat.tokenizer.decode(chat.prompt("", "q", []), skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user\nq<|im_end|>")


def test_a_processor_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY.family.folder, folder)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"patch_size": 16}))
    with pytest.raises(InputError, match=r"is not the processor of Qwen2-VL: patch_size is 16, expected 14"):
        open_family(folder)


def test_the_towers_inner_width_is_a_multiple_of_its_width() -> None:
    with pytest.raises(OutOfBounds, match="must be a multiple of vision_hidden_size=128, got 200"):
        TinyQwen2(vision_intermediate_size=200)
