"""Qwen3-VL: its vision tower against transformers', a thinking model's turns, folders that do not fit."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import each_case
from tiny_family import tiny_family
from tokenizers import Tokenizer
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from vtcli.config.bounds import OutOfBounds
from vtcli.engines.hf import load_model
from vtcli.errors import ConfigError, InputError
from vtcli.families import varlen
from vtcli.families.qwen_vl.family import Qwen3VL
from vtcli.families.qwen_vl.sizes import TinyQwen3
from vtcli.families.table import find_family, open_family
from vtcli.schema import Call

TINY = tiny_family("qwen3_vl")
GRIDS = [(1, 18, 14), (1, 2, 2), (1, 4, 22), (1, 18, 14)]
INSTRUCT = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
THINKING = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
NO_THOUGHT = "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}"
SAME_LINE = "{{- '<|im_start|>assistant\\n<think>' }}"
NOT_SHOWN = "{% if documents %}" + THINKING + "{% endif %}"
OPENED = {
    INSTRUCT: "",
    THINKING: "<think>\n",
    NO_THOUGHT: "<think>\n\n</think>\n\n",
    SAME_LINE: "<think>",
    NOT_SHOWN: "<think>\n",
    "{% generation %}a{% endgeneration %}{{ strftime_now('%Y') }}" + THINKING: "<think>\n",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{% break %}{% endfor %}" + INSTRUCT: "",
    "{{ messages[0].content[0].text.strip() + eos_token }}" + INSTRUCT: "",
    "{{ messages | tojson(ensure_ascii=False) + messages[0].content }}" + THINKING: "<think>\n",
}
"""Chat templates, and what they write after the header of the policy's turn."""


def pixels() -> torch.Tensor:
    count = sum(height * width for _, height, width in GRIDS)
    return torch.randn(count, TINY.family.patches.row, generator=torch.Generator().manual_seed(1))


def test_features_of_all_depths_and_gradients_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours, calls = TINY.reference(), load_model(TINY.family), []
    theirs = plain.model.get_image_features(pixels(), torch.tensor(GRIDS))
    expected = torch.stack([torch.cat(part) for part in (theirs.pooler_output, *theirs.deepstack_features)], 1)
    attend = varlen.attend
    monkeypatch.setattr(varlen, "attend", lambda *a, **k: calls.append(len(a[3].queries) - 1) or attend(*a, **k))
    found = TINY.family.tower(ours, pixels(), GRIDS)
    assert calls == [len(GRIDS)] * 3  # a block attends once
    assert [len(features) for features in found] == [height * width // 4 for _, height, width in GRIDS]
    torch.testing.assert_close(torch.cat(list(found)), expected, atol=1e-5, rtol=1e-5)
    (torch.cat(list(found)) ** 2).sum().backward()
    (expected**2).sum().backward()
    own = dict(ours.model.visual.named_parameters())
    for name, parameter in plain.model.visual.named_parameters():
        largest = float(parameter.grad.abs().max())
        torch.testing.assert_close(own[name].grad, parameter.grad, atol=1e-4 * largest, rtol=1e-4)


def test_a_conversation_without_a_system_prompt_has_no_system_turn() -> None:
    chat = TINY.family.chat
    with_one, without = chat.prompt("s", "q", []), chat.prompt("", "q", [])
    assert with_one[-len(without) :] == without
    assert without[0] == chat.im_start
    assert chat.tokenizer.decode(without, skip_special_tokens=False).startswith("<|im_start|>user\nq<|im_end|>")


@each_case("kind", ["qwen3_vl", "qwen3_vl_moe"])
def test_frames_with_their_times_are_the_processors_video_of_still_pairs(kind: str) -> None:
    """An environment that writes ``<0.5 seconds><image>`` shows what transformers makes of a video in which each frame
    comes twice: the same text, positions and features. The pad's id differs, and features take its place."""
    tiny = tiny_family(kind)
    chat, plain = tiny.family.chat, tiny.reference()
    row = tiny.row("video", "<0.5 seconds><image><2.5 seconds><image>What moved?", ["Look at this."], [[3, 3]])
    grid = tiny.family.patches.grid(row.images[0])
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        **{f"{name}_token": f"<|{name}|>" for name in ("vision_start", "vision_end")},
        video_token="<|video_pad|>",
        _calculate_timestamps=partial(Qwen3VLProcessor._calculate_timestamps, None),
    )
    shown = {
        "video_grid_thw": torch.tensor([(2, *grid[1:])]),
        "video_metadata": [SimpleNamespace(fps=1.0, frames_indices=[0, 1, 2, 3])],
    }
    told = Qwen3VLProcessor.replace_video_token(processor, shown, 0)
    prompt = f"<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\n{told}What moved?<|im_end|>\n"
    reader = Tokenizer.from_file(str(tiny.family.folder / "tokenizer.json"))
    pad = reader.token_to_id("<|video_pad|>")
    ids = [pad if i == chat.image_pad else i for i in row.token_ids]
    assert ids[: row.mask.index(1)] == reader.encode(f"{prompt}<|im_start|>assistant\n").ids
    frames = [torch.from_numpy(tiny.family.patches.normalised(tiny.store.view(ref))) for ref in row.images]
    tensor = torch.tensor([ids])
    with torch.no_grad():
        logits = plain(
            input_ids=tensor,
            attention_mask=torch.ones_like(tensor),
            mm_token_type_ids=2 * (tensor == pad).int(),
            pixel_values_videos=torch.cat(frames),
            video_grid_thw=shown["video_grid_thw"],
        ).logits[0]
        expected = tiny.allowed(logits.float()).log_softmax(-1)
        found = tiny.expected(plain, row)
    video = [expected[t - 1, ids[t]] for t, m in enumerate(row.mask) if m]
    torch.testing.assert_close(found, torch.stack(video), atol=1e-5, rtol=0)


@each_case("kind", ["qwen4_exp", "qwen3_omni_moe_thinker", "qwen2_5_omni"])
def test_newer_and_other_qwens_are_refused_by_name_with_the_reason(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "vision_config": {}}))
    reason = "positions count seconds of sound" if "omni" in kind else "it looks up runs of ids"
    with pytest.raises(ConfigError, match=rf"models of type '{kind}' are not supported: .*{reason}"):
        open_family(tmp_path)
    assert find_family(kind, {kind: "vtcli.families.qwen_vl.family.Qwen3VL"}) is Qwen3VL


def folder_with(tmp_path: Path, template: str, file: str = "chat_template.jinja") -> Path:
    folder = tmp_path / "model"
    shutil.copytree(TINY.family.folder, folder)
    (folder / "chat_template.jinja").unlink()
    (folder / file).write_text(template if file.endswith("jinja") else json.dumps({"chat_template": template}))
    return folder


@each_case("file", ["chat_template.jinja", "chat_template.json"])
def test_a_template_says_whether_the_model_thinks(tmp_path: Path, file: str) -> None:
    folder = folder_with(tmp_path, INSTRUCT, file)
    for template, opened in OPENED.items():
        (folder / file).write_text(template if file.endswith("jinja") else json.dumps({"chat_template": template}))
        chat = open_family(folder).chat
        text = chat.tokenizer.decode(chat.prompt("", "q", []), skip_special_tokens=False)
        assert text.endswith(f"<|im_start|>assistant\n{opened}"), template
        assert (chat.thought_end is not None) == (opened in ("<think>\n", "<think>")), template
    for template in ("{{ 'a' + 5 }}", "{{ range(10**9) }}", "{% if %}", "{{ raise_exception('no') }}"):
        (folder / file).write_text(template if file.endswith("jinja") else json.dumps({"chat_template": template}))
        with pytest.raises(InputError, match="its chat template cannot be rendered"):
            open_family(folder)


def test_a_thinking_models_turn_begins_in_its_thought(tmp_path: Path) -> None:
    chat = open_family(folder_with(tmp_path, THINKING)).chat
    call = '<tool_call>{"name": "zoom", "arguments": {}}</tool_call>'
    thought = f"I could {call} or say <answer>1</answer>"

    def text(turn: str) -> str:
        return chat.tokenizer.decode(chat.encode_turn(turn), skip_special_tokens=False)

    # as Qwen3-VL-Thinking's template writes an assistant's turn after "<think>\n"
    assert text("It is 7.") == "\n</think>\n\nIt is 7.<|im_end|>"
    assert text(f"<think>\n{thought}\n</think>\n\n{call}") == f"{thought}\n</think>\n\n{call}<|im_end|>"
    done = chat.decode(chat.encode_turn(f"<think>\n{thought}\n</think>\n\n{call}"))
    assert done.calls == (Call(raw='{"name": "zoom", "arguments": {}}', name="zoom", arguments={}),)
    assert done.answer is None
    assert done.text.startswith("I could")
    ids = chat.tokenizer.encode(thought, add_special_tokens=False).ids
    unfinished = chat.decode(ids)
    assert (unfinished.calls, unfinished.answer) == ((), None)
    # thoughts of earlier turns stay: what was sampled is never written again
    start, turn = chat.prompt("", "q", []), chat.encode_turn(f"{thought}\n</think>\n\n{call}")
    row = (*start, *turn, *chat.observe("seen", []))
    assert chat.tokenizer.decode(row, skip_special_tokens=False).count(thought) == 1


@each_case(
    ("changes", "told"),
    [
        ({"patch_size": 14}, r"is not the processor of Qwen3-VL: patch_size is 14, expected 16"),
        ({"image_mean": [0.48, 0.46, 0.41]}, r"image_mean is \[0.48, 0.46, 0.41\], expected \[0.5, 0.5, 0.5\]"),
    ],
)
def test_a_processor_of_another_model_is_refused(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    folder = folder_with(tmp_path, INSTRUCT)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=told):
        open_family(folder)


@each_case("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"])
@each_case("key", ["image_token_id", "vision_start_token_id"])
def test_a_config_whose_ids_are_not_its_tokenizers_is_one_error(tmp_path: Path, kind: str, key: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_family(kind).family.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    for given, told in (
        (config | {key: 5}, "5"),
        ({k: v for k, v in config.items() if k != key}, "(15165[25]|24805[36])"),
    ):
        (folder / "config.json").write_text(json.dumps(given))
        with pytest.raises(InputError, match=rf"{key} in config\.json is {told}, but tokenizer\.json writes <\|"):
            open_family(folder)


@each_case(
    ("file", "content", "told"),
    [
        (
            "tokenizer.json",
            "{",
            r"tokenizer\.json is not a tokenizer .*copy or download the folder of the Qwen3-VL model",
        ),
        ("preprocessor_config.json", "{", r"preprocessor_config\.json cannot be read"),
        ("preprocessor_config.json", "[]", r"preprocessor_config\.json is not a JSON object"),
    ],
)
def test_a_file_that_is_not_whole_is_one_error(tmp_path: Path, file: str, content: str, told: str) -> None:
    folder = folder_with(tmp_path, INSTRUCT)
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=told):
        open_family(folder)


@each_case(
    ("sizes", "told"),
    [
        ({"vision_positions": 60}, "must be a square number, got 60"),
        ({"vision_deepstack": 4, "vision_depth": 3}, "must be at most vision_depth=3, got 4"),
        ({"vision_deepstack": 3, "layers": 2}, "must be at most layers=2, got 3"),
    ],
)
def test_sizes_that_cannot_be_are_named(sizes: dict[str, int], told: str) -> None:
    with pytest.raises(OutOfBounds, match=told):
        TinyQwen3(**sizes)
