"""Chat templates of real releases, as TRL's package has them: with tools and thoughts, a row is the template's text."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from cases import each_case
from tiny_generic import miniature
from transformers import AutoTokenizer

from vtcli.families.table import open_family

TRL = importlib.util.find_spec("trl")
pytestmark = pytest.mark.skipif(TRL is None, reason="trl is not installed here; `make test-vllm` installs it")
CALL = '<tool_call>\n{"name": "zoom", "arguments": {"box": [1, 2]}}\n</tool_call>'
RELEASED = [
    ("qwen2_vl", "qwen2_5_vl", "user"),
    ("qwen2_5_vl", "qwen2_5_vl", "user"),
    ("qwen3_vl", "qwen3_vl", "tool"),
    ("qwen3_vl_moe", "qwen3_vl", "tool"),
    ("qwen3_5", "qwen3_5_think", "tool"),
    ("qwen3_5_moe", "qwen3_5_nothink", "tool"),
    ("gemma3", "gemma3", "user"),
    ("idefics3", "idefics3", "user"),
    ("smolvlm", "smolvlm", "user"),
    ("internvl", "qwen3_5_think", "tool"),
]
"""A miniature, a released template, and the role by which it takes what a tool says."""


@each_case(("kind", "name", "role"), RELEASED)
def test_a_row_is_the_text_of_a_released_template(tmp_path: Path, kind: str, name: str, role: str) -> None:
    assert TRL is not None
    tiny, folder = miniature(kind), tmp_path / "model"
    shutil.copytree(tiny.family.folder, folder)
    template = Path(str(TRL.origin)).with_name("chat_templates").joinpath(f"{name}.jinja").read_text()
    if kind == "internvl":  # the template of a family that is not read here, with this one's image
        template = template.replace("<|vision_start|><|image_pad|><|vision_end|>", "<IMG_CONTEXT>")
    (folder / "chat_template.jinja").write_text(template)

    chat, image = open_family(folder).chat, tiny.image(0)
    thought = "I could zoom.\n</think>\n\n" if name.endswith("_think") else ""
    own = [*chat.prompt("You are kind.", "<image>Where?", [image]), *chat.encode_turn(f"{thought}Look. {CALL}")]
    own += [*chat.observe("seen", ()), *chat.encode_turn(f"{thought}<answer>7</answer>")]

    opened = thought and f"<think>\n{thought}"
    seen = "seen" if role == "tool" else "<tool_response>\nseen\n</tool_response>"
    talk = [("system", "You are kind."), ("user", "Where?"), ("assistant", f"{opened}Look. {CALL}")]
    talk += [(role, seen), ("assistant", f"{opened}<answer>7</answer>")]
    messages = [{"role": who, "content": [{"type": "text", "text": text}]} for who, text in talk]
    messages[1]["content"].insert(0, {"type": "image"})
    expected = str(AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False))
    found = chat.tokenizer.decode(own, skip_special_tokens=False)
    if kind.startswith("qwen"):
        found = re.sub(r"(<\|image_pad\|>)+", "<|image_pad|>", found)
    else:
        shown = chat.tokenizer.decode(chat.image_ids(image), skip_special_tokens=False)
        found = found.replace(shown, chat.reader.marker)
    assert found == expected.rstrip("\n")
