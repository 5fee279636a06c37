"""What a policy reads after a run: each paper's form, and that no run can write anything but text into it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny_model
from cases import each_case
from fakes import CODE_CARDS, code_card, make_pixels, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcli.envs.code_protocol import ObservationTemplates
from vtcli.envs.code_writing import (
    ShownOutput,
    details,
    harmless,
    last_lines,
    observe,
    operations,
    plain,
    shorten,
    transform,
)
from vtcli.families.qwen_vl.chat import MARKERS
from vtcli.sandbox.types import Operation, OutputImage, RunResult, Status

IMAGE = make_pixels()


def shown(name, result, first=1):
    return observe(code_card(name).writing, ShownOutput(result, result.images, (), first), 8192)


@each_case(
    ("name", "text"),
    [
        ("codev", "<sandbox_output>7\n<image></sandbox_output>Decide from the sandbox output"),
        ("codevision", "<image>This is the processed image."),
        ("codedance", "<interpreter>7\nOutput image:\n<image>\n</interpreter>"),
        ("codedance_call", "Code execution successful, output:\n7\nOutput image:\n<image>\nThink about the result"),
        ("thyme", "<sandbox_output>7\n<image></sandbox_output>"),
        (
            "pyvision_image",
            "<interpreter>\nText Result:\n7\nImage Result:\n<image_clue_1><image></image_clue_1></interpreter>\n",
        ),
    ],
)
def test_text_and_an_image(name, text):
    assert shown(name, make_run("ok", IMAGE, output="7\n")).startswith(text)


def test_images_are_numbered_over_the_trajectory():
    text = shown("pyvision_video", make_run("ok", IMAGE, IMAGE), first=0)
    assert text == (
        "<interpreter>\nImage Result:\n<image_clue_0><image></image_clue_0><image_clue_1><image></image_clue_1>"
        "</interpreter>\n"
    )


@each_case("name", CODE_CARDS)
def test_errors_are_one_line_and_say_what_was_printed_where_the_paper_does(name):
    trace = 'Traceback (most recent call last):\n  File "<code>", line 2\nZeroDivisionError: division by zero\n'
    text = shown(name, make_run("error", IMAGE, error=trace, output="before"))
    assert "ZeroDivisionError: division by zero" in text
    assert "Traceback" not in text
    assert "<image>" not in text
    assert ("before" in text) == (name in ("codev", "codedance", "pyvision_image", "pyvision_video"))


@each_case("status", [s for s in Status if s not in (Status.OK, Status.NO_OUTPUT, "protocol", "lost")])
def test_a_failure_without_words_is_said_in_ours(status):
    assert shown("codev", RunResult(status)).startswith("<sandbox_output>Error: the ")


@each_case("name", CODE_CARDS)
def test_a_run_that_shows_nothing_says_so(name):
    text = shown(name, make_run("no_output"))
    assert text == code_card(name).writing.nothing or name == "codevision"
    assert len(text) > 20


def test_codevision_wants_an_image():
    text = shown("codevision", make_run("ok", output="7"))
    assert text.startswith("Error: the code must leave an image in the variable 'result'. Think")


def test_codev_hides_the_names_of_files_that_are_shown():
    images = (OutputImage(IMAGE, "printed_files", "crop_1.png"),)
    text = shown("codev", make_run("ok", images=images, output="./crop_1.png\nwidth 7\nother.png\n"))
    assert text.startswith("<sandbox_output>width 7\nother.png\n<image></sandbox_output>")


def test_notes_on_what_was_repaired_are_shown():
    result = make_run("ok", output="7", notes=("crop box clamped: (-5, 0, 10, 10) -> (0, 0, 10, 10)",))
    assert "7\nNote: crop box clamped: (-5, 0, 10, 10)" in shown("codedance", result)


@each_case("name", CODE_CARDS)
@each_case("text", ["</sandbox_output>", "</interpreter>", "</tool_response>", "< / interpreter >", "<image>"])
def test_a_run_cannot_close_the_observation(name, text):
    for result in (make_run("ok", IMAGE, output=text, value=text, notes=(text,)), make_run("error", error=text)):
        honest = replace(result, output="x", value="x", notes=("x",), error="x")
        count = shown(name, honest).count
        observation = shown(name, result)
        for tag in ("</sandbox_output>", "</interpreter>", "</tool_response>", "<image>"):
            assert observation.count(tag) == count(tag)


def test_ordinary_text_stays_as_it_is():
    for text in ("1 < 2 > 0", "<class 'int'>", "<PIL.Image.Image image mode=RGB>", "a<b", "x <- 3", "é 世界\tend"):
        assert harmless(text) == text
    assert harmless("a\r\nb\rc\x00\x1b[31m\x9b") == "a\nb\nc[31m"
    assert harmless("\ud800x") == "?x"


def test_long_texts_say_how_much_is_missing():
    text = shorten("a" * 500 + "b" * 500, 100)
    assert text == "a" * 50 + "\n… 900 characters left out …\n" + "b" * 50
    assert shorten("abc", 3) == "abc"
    assert last_lines("a\n\nb\nc\n \n", 2) == "b\nc"
    assert last_lines("a\nb", 0) == "a\nb"
    assert len(shown("codev", make_run("error", error="x" * 10**6, output="y" * 10**6))) < 20_000


def test_a_card_that_cannot_work_is_refused():
    good = {"turn": "tool", "result": "{text}{images}", "error": "{error}"}
    assert ObservationTemplates(**good).image == "<image>"
    for bad in ({"result": "{text}"}, {"error": "no"}, {"image": "x"}, {"nothing": "<image>"}):
        with pytest.raises(ValueError, match="must hold"):
            ObservationTemplates(**(good | bad))


def test_claims_become_plain_and_small_json():
    deep = [[[[[[[[1]]]]]]]]
    claims = {"nan": float("nan"), "big": 10**40, "deep": deep, "<image>": "</interpreter>\x00", "many": range(10**6)}
    claims |= {"bytes": b"x", "object": object(), "array": np.float64("inf"), "yes": True}
    found = plain(claims)
    json.dumps(found, allow_nan=False).encode()
    assert found["nan"] is found["big"] is found["bytes"] is found["object"] is found["array"] is None
    assert found["yes"] is True
    assert found["‹image>"] == "‹/interpreter>"
    assert len(found["many"]) == 64
    assert len(operations([Operation("crop", {}, "pil")] * 1000)) == 64
    text = json.dumps(transform(OutputImage(IMAGE, "show", "n" * 10**6, (Operation("x" * 10**6, {}, "pil"),)), None))
    assert len(text) < 1000


def test_details_keep_the_exact_status():
    found = details(ShownOutput(make_run("oom", cpu_s=1.5, peak_mb=3072.0, images_dropped=2), (), ("note",), 1))
    assert (found["run"], found["cpu_s"], found["images_dropped"], found["notes"]) == ("oom", 1.5, 2, ["note"])


PIECES = st.sampled_from(
    [
        *MARKERS,
        "<image>",
        "</sandbox_output>",
        "<interpreter>",
        "</tool_response>",
        "</answer>",
        "<",
        "/",
        ">",
        "|",
        "\n",
    ]
    + ["{images}", "{text}", "<image_clue_1>", "</", "ima", "ge>", "\ud800", "\x1b", " "]
)
texts = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)


@settings(max_examples=150)
@given(st.sampled_from(CODE_CARDS), texts, texts, texts, st.booleans(), st.integers(0, 2))
def test_no_text_forges_a_marker_an_image_or_the_end(name, output, value, note, fails, images):
    """1. as many placeholders as images, 2. no special id but the turn's own, 3. the tags of an honest observation."""
    fields = {"output": output, "value": value, "notes": (note,), "error": output}
    result = make_run("error" if fails else "ok", *([] if fails else [IMAGE] * images), **fields)
    honest = make_run(str(result.status), *(each.pixels for each in result.images), output="x", error="x")
    found, plain_text = shown(name, result), shown(name, honest)
    refs = [tiny_model.image(0)] * found.count("<image>")
    assert len(refs) == (0 if fails else images)
    chat = tiny_model.chat()
    write = chat.observe if code_card(name).writing.turn == "tool" else chat.ask
    ids, special = write(found, refs), {chat.tokenizer.token_to_id(marker) for marker in MARKERS}
    expected = [chat.im_start, *([chat.vision_start, chat.vision_end] * len(refs)), chat.im_end, chat.im_start]
    assert [i for i in ids if i in special and i != chat.image_pad] == expected
    assert ids.count(chat.image_pad) == sum(map(chat.image_tokens, refs))
    for tag in ("sandbox_output", "interpreter", "tool_response", "image_clue_1"):
        for form in (f"<{tag}>", f"</{tag}>"):
            assert found.count(form) == plain_text.count(form)
