"""The vision tower's windows in one call, against transformers' own loop over them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from cases import each_case
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_position_ids, get_vision_window_index

from vtcli.families import varlen
from vtcli.families.qwen_vl.tower import tower_layout, with_linear_patches, with_whole_windows
from vtcli.families.qwen_vl.tower import windowed_tower as features

GRIDS = [(1, 18, 14), (1, 8, 8), (1, 4, 22), (1, 18, 14), (1, 2, 2)]  # several windows, one, and parts of one


def tower():
    """Two blocks with windows around one without."""
    torch.manual_seed(0)
    text = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    vision = dict(depth=3, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=32, window_size=112)
    config = Qwen2_5_VLConfig(
        text_config=text | dict(num_key_value_heads=1, bos_token_id=None, eos_token_id=None),
        vision_config=vision | dict(fullatt_block_indexes=[1], initializer_range=0.2),
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def pixels():
    count = sum(height * width for _, height, width in GRIDS)
    return torch.randn(count, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(1))


def test_the_layout_is_transformers_own_with_the_windows_of_an_image_by_size() -> None:
    found = tower_layout(GRIDS, 112)
    sizes = torch.tensor(GRIDS)
    index, edges = get_vision_window_index(sizes, 2, 112, 14)
    assert np.array_equal(found.positions, get_vision_position_ids(sizes, 2).numpy())
    assert np.array_equal(found.images, get_vision_cu_seqlens(sizes).numpy())
    assert found.longest_image == 18 * 14 and found.longest_window == 64

    def windows(order, bounds):
        return [tuple(order[start // 4 : stop // 4].tolist()) for start, stop in pairwise(bounds.tolist())]

    ours, theirs = windows(found.order, found.windows), windows(index, edges)
    assert sorted(ours) == sorted(theirs)
    assert [len(w) for w in ours] == [16, 16, 12, 12, 4, 3, 16, 8, 8, 6, 16, 16, 12, 12, 4, 3, 1]


def test_features_and_gradients_are_those_of_transformers() -> None:
    plain, ours = tower(), with_whole_windows(with_linear_patches(tower()))
    expected = plain.model.get_image_features(pixels(), torch.tensor(GRIDS)).pooler_output
    found = features(ours, pixels(), GRIDS)
    assert [f.shape for f in found] == [f.shape for f in expected]
    torch.testing.assert_close(torch.cat(list(found)), torch.cat(list(expected)), atol=1e-5, rtol=1e-5)
    for each in (found, expected):
        (torch.cat(list(each)) ** 2).sum().backward()
    theirs = dict(plain.model.visual.named_parameters())
    for name, parameter in ours.model.visual.named_parameters():
        largest = float(theirs[name].grad.abs().max())
        torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=1e-4 * largest, rtol=1e-4)


def test_a_block_attends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, calls = with_whole_windows(tower()), []
    attend = varlen.attend
    monkeypatch.setattr(varlen, "attend", lambda *a, **k: calls.append(len(a[3].queries) - 1) or attend(*a, **k))
    features(ours, pixels(), GRIDS)
    assert calls == [17, 5, 17]  # windows, images, windows


@each_case("checkpointing", [False, True])
def test_activation_checkpointing_computes_the_blocks_again(checkpointing: bool) -> None:
    ours, calls = with_whole_windows(tower()).train(), []
    for block in ours.model.visual.blocks:
        block.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    if checkpointing:
        ours.gradient_checkpointing_enable({"use_reentrant": False})
    torch.cat(list(features(ours, pixels(), GRIDS))).sum().backward()
    assert len(calls) == (6 if checkpointing else 3)
