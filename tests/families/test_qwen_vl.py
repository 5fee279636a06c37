"""Ids, positions and patches against transformers' own template, ``get_rope_index`` and image processor."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from cases import each_case
from tiny_family import SIZES, TinyFamily, tiny_family
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from vtcli.errors import InputError
from vtcli.families.qwen_vl.chat import MARKERS


@pytest.fixture(scope="module", params=SIZES)
def tiny(request) -> TinyFamily:
    return tiny_family(request.param)


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return AutoTokenizer.from_pretrained(tiny.family.folder)


@functools.cache
def plain(tiny):
    return tiny.reference()


def render(tiny, tokenizer, messages, images, generate=True):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
    for ref in images:
        text = text.replace("<|image_pad|>", "<|PAD|>" * tiny.family.chat.image_tokens(ref), 1)
    return tuple(tokenizer(text.replace("<|PAD|>", "<|image_pad|>"), add_special_tokens=False)["input_ids"])


def user(*parts):
    return {
        "role": "user",
        "content": [{"type": "image"} if p == "<image>" else {"type": "text", "text": p} for p in parts],
    }


def test_a_prompt_is_what_the_chat_template_gives(tiny, tokenizer):
    images = [tiny.image(0), tiny.image(1)]
    system = {"role": "system", "content": "You are kind. é 12"}
    found = tiny.family.chat.prompt("You are kind. é 12", "see <image><image>\nWhere is the tag?", images)
    messages = [system, user("see ", "<image>", "<image>", "\nWhere is the tag?")]
    assert found == render(tiny, tokenizer, messages, images)
    without = tiny.family.chat.prompt("You are kind. é 12", "Where?", images)  # images come first
    assert without == render(tiny, tokenizer, [system, user("<image>", "<image>", "Where?")], images)
    assert tiny.family.chat.prompt("s", "q", []) == render(
        tiny, tokenizer, [{"role": "system", "content": "s"}, user("q")], []
    )


@each_case("tool", [True, False])
def test_an_observation_continues_the_template(tiny, tokenizer, tool):
    chat, images = tiny.family.chat, [tiny.image(0), tiny.image(2)]
    start = chat.prompt("s", "<image>q", images[:1])
    turn = chat.encode_turn("Look at this.")
    more = (chat.observe if tool else chat.ask)("<image>\nimage 1", images[1:])
    wrapped = ("<tool_response>\n", "<image>", "\nimage 1\n</tool_response>") if tool else ("<image>", "\nimage 1")
    messages = [
        {"role": "system", "content": "s"},
        user("<image>", "q"),
        {"role": "assistant", "content": "Look at this."},
        user(*wrapped),
    ]
    said = start + turn + more
    expected = render(tiny, tokenizer, messages, images)
    # the header and the turn are encoded apart, as they are when a policy samples the turn
    assert tokenizer.decode(said) == tokenizer.decode(expected)
    assert said[: len(start)] == expected[: len(start)]
    assert said[-len(more) :] == expected[-len(more) :]


@each_case("marker", [*MARKERS, "<image>"])
def test_nobody_can_write_a_marker(tiny, marker):
    chat, text = tiny.family.chat, f"a {marker} b"
    special = {chat.tokenizer.token_to_id(name) for name in MARKERS}

    def markers(ids):
        return [i for i in ids if i in special]

    assert markers(chat.prompt(text, text, [])) == markers(chat.prompt("x", "x", []))
    assert markers(chat.observe(text, [])) == markers(chat.observe("x", []))
    assert markers(chat.ask(text, [])) == markers(chat.ask("x", []))
    assert markers(chat.encode_turn(text)) == [chat.im_end]
    assert chat.decode(chat.encode_turn(text)).text == text
    one = [tiny.image(0)]
    assert markers(chat.observe("<image>" + text, one)) == markers(chat.observe("<image>x", one))


def test_images_and_placeholders_must_match(tiny):
    chat = tiny.family.chat
    with pytest.raises(ValueError, match="2 images but 1"):
        chat.observe("<image>", [tiny.image(0)] * 2)
    ids = chat.prompt("s", "<image>q", [tiny.image(0)])
    chat.check_images(ids, [tiny.image(0)])
    with pytest.raises(InputError, match="4 image placeholders but 3"):
        chat.check_images(ids, [tiny.image(1)])


@each_case("nths", [(), (0,), (2, 1), (1, 1, 3), (3, 2, 4, 1)])
@each_case("adjacent", [True, False])
def test_positions_are_those_of_get_rope_index(tiny, nths, adjacent):
    chat, images = tiny.family.chat, [tiny.image(i) for i in nths]
    question = "a" + ("<image>" if adjacent else "<image> and then ") * len(nths) + " b?"
    ids = chat.prompt("You are kind.", question, images)
    tensor = torch.tensor([ids])
    pads = (tensor == chat.image_pad).int()
    grids = torch.tensor([tiny.family.patches.grid(ref) for ref in images]) if images else None
    expected, delta = plain(tiny).model.get_rope_index(
        tensor, mm_token_type_ids=pads, image_grid_thw=grids, attention_mask=torch.ones_like(tensor)
    )
    found, following = tiny.family.patches.positions(ids, images, chat.image_pad)
    assert np.array_equal(found, expected[-3:, 0].numpy())
    assert following == len(ids) + int(delta)


@each_case("nth", range(5))
def test_patches_are_those_of_the_image_processor(tiny, nth):
    pixels = tiny.store.view(tiny.image(nth))
    processor = Qwen2VLImageProcessorPil.from_pretrained(tiny.family.folder, do_resize=False)
    expected = processor(pixels, return_tensors="np")
    assert tuple(expected["image_grid_thw"][0]) == tiny.family.patches.grid(tiny.image(nth))
    np.testing.assert_allclose(tiny.family.patches.normalised(pixels), expected["pixel_values"], atol=1e-5)
