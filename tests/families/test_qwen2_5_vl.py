"""Ids, positions and patches against transformers' own template, ``get_rope_index`` and image processor."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_model
import torch
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from vtcli.errors import InputError
from vtcli.families.qwen2_5_vl.vision import PATCHES
from vtcli.families.qwen_vl.chat import MARKERS


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny_model.folder())


def render(tokenizer, messages, images, generate=True):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
    for ref in images:
        text = text.replace("<|image_pad|>", "<|PAD|>" * PATCHES.tokens(ref), 1)
    return tuple(tokenizer(text.replace("<|PAD|>", "<|image_pad|>"), add_special_tokens=False)["input_ids"])


def user(*parts):
    return {
        "role": "user",
        "content": [{"type": "image"} if p == "<image>" else {"type": "text", "text": p} for p in parts],
    }


def test_a_prompt_is_what_the_chat_template_gives(tokenizer):
    images = [tiny_model.image(0), tiny_model.image(1)]
    system = {"role": "system", "content": "You are kind. é 12"}
    found = tiny_model.chat().prompt("You are kind. é 12", "see <image><image>\nWhere is the tag?", images)
    messages = [system, user("see ", "<image>", "<image>", "\nWhere is the tag?")]
    assert found == render(tokenizer, messages, images)
    without = tiny_model.chat().prompt("You are kind. é 12", "Where?", images)  # images come first
    assert without == render(tokenizer, [system, user("<image>", "<image>", "Where?")], images)
    assert tiny_model.chat().prompt("s", "q", []) == render(
        tokenizer, [{"role": "system", "content": "s"}, user("q")], []
    )


@pytest.mark.parametrize("tool", [True, False])
def test_an_observation_continues_the_template(tokenizer, tool):
    chat, images = tiny_model.chat(), [tiny_model.image(0), tiny_model.image(2)]
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
    expected = render(tokenizer, messages, images)
    # the header and the turn are encoded apart, as they are when a policy samples the turn
    assert tokenizer.decode(said) == tokenizer.decode(expected)
    assert said[: len(start)] == expected[: len(start)]
    assert said[-len(more) :] == expected[-len(more) :]


@pytest.mark.parametrize("marker", [*MARKERS, "<image>"])
def test_nobody_can_write_a_marker(marker):
    chat, text = tiny_model.chat(), f"a {marker} b"
    special = {chat.tokenizer.token_to_id(name) for name in MARKERS}

    def markers(ids):
        return [i for i in ids if i in special]

    assert markers(chat.prompt(text, text, [])) == markers(chat.prompt("x", "x", []))
    assert markers(chat.observe(text, [])) == markers(chat.observe("x", []))
    assert markers(chat.ask(text, [])) == markers(chat.ask("x", []))
    assert markers(chat.encode_turn(text)) == [chat.im_end]
    assert chat.decode(chat.encode_turn(text)).text == text
    one = [tiny_model.image(0)]
    assert markers(chat.observe("<image>" + text, one)) == markers(chat.observe("<image>x", one))


def test_images_and_placeholders_must_match():
    chat = tiny_model.chat()
    with pytest.raises(ValueError, match="2 images but 1"):
        chat.observe("<image>", [tiny_model.image(0)] * 2)
    ids = chat.prompt("s", "<image>q", [tiny_model.image(0)])
    chat.check_images(ids, [tiny_model.image(0)])
    with pytest.raises(InputError, match="4 image placeholders but 3"):
        chat.check_images(ids, [tiny_model.image(1)])


@pytest.mark.parametrize("nths", [(), (0,), (2, 1), (1, 1, 3), (3, 2, 0, 1)])
@pytest.mark.parametrize("adjacent", [True, False])
def test_positions_are_those_of_get_rope_index(nths, adjacent):
    chat, images = tiny_model.chat(), [tiny_model.image(i) for i in nths]
    question = "a" + ("<image>" if adjacent else "<image> and then ") * len(nths) + " b?"
    ids = chat.prompt("You are kind.", question, images)
    tensor = torch.tensor([ids])
    pads = (tensor == chat.image_pad).int()
    grids = torch.tensor([PATCHES.grid(ref) for ref in images]) if images else None
    model = tiny_model.model()
    expected, delta = model.model.get_rope_index(
        tensor, mm_token_type_ids=pads, image_grid_thw=grids, attention_mask=torch.ones_like(tensor)
    )
    found, following = PATCHES.positions(ids, images, chat.image_pad)
    assert np.array_equal(found, expected[-3:, 0].numpy())
    assert following == len(ids) + int(delta)


@pytest.mark.parametrize("nth", range(4))
def test_patches_are_those_of_the_image_processor(nth):
    pixels = tiny_model.store().view(tiny_model.image(nth))
    processor = Qwen2VLImageProcessorPil(do_resize=False)
    expected = processor(pixels, return_tensors="np")
    assert tuple(expected["image_grid_thw"][0]) == PATCHES.grid(tiny_model.image(nth))
    np.testing.assert_allclose(PATCHES.normalised(pixels), expected["pixel_values"], atol=1e-5)
