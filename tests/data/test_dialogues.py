"""SFT trajectories in the formats of public sets: turns, calls, observations, images; damaged rows by reason."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import each_case
from fakes import native_card

from vtcli.config import compose
from vtcli.config.binding import bind
from vtcli.data.generators import canvas
from vtcli.data.importers import texts
from vtcli.data.importers.dialogues import Dialogue
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.rows import generate
from vtcli.data.sets.row import SetRow
from vtcli.envs.card import EnvCard, EnvInputs, read_card
from vtcli.envs.demonstrate import MemoryImages
from vtcli.envs.imitate import NO_RUNNER, imported_messages
from vtcli.envs.prompts import PromptStyle
from vtcli.errors import ConfigError
from vtcli.schema import Sample
from vtcli.store.images import as_given

PNGS = [canvas.png(np.full((40, 60, 3), shade, np.uint8)) for shade in (10, 20)]
URI = f"data:image/png;base64,{base64.b64encode(PNGS[0]).decode()}"
PROMPT = PromptStyle("compact", "{tools}", "{question}", "{question}")
CODE = "<think>Up.</think><code>\n```python\nprint(1)\n```\n</code>"
CALL = '<tool_call>\n{"name": "code_image_tool", "arguments": {"code": "result = image"}}\n</tool_call>'
ZOOM = {"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [1, 2, 30, 40]}}
ZOOMED = '<tool_call>{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [1, 2, 30, 40]}}</tool_call>'


def dialogue(
    folder: Path, row: dict[str, Any], kind: str, columns: dict[str, Any] | None = None, **reading: Any
) -> Dialogue:
    for number, png in enumerate(PNGS):
        (folder / f"{number}.png").write_bytes(png)
    (folder / "sft.json").write_text(json.dumps([row]))
    path = str(folder / "sft.json")
    how: Any = {"name": "own", "row": kind, "columns": columns, "reading": reading}
    found = generate(0, 0, "demo-train", path=path, **how).dialogue
    assert found is not None
    return found


def card(name: str) -> EnvCard:
    return native_card() if name == "native" else read_card(bind(compose.load("rl", [f"env={name}"]).values["env"]))


def led(found: Dialogue, name: str) -> list[tuple[str, str]]:
    """The messages under an environment's syntax."""
    images = MemoryImages(as_given)
    refs = [images.add(pixels) for pixels in found.images]
    world = card(name)
    sample = Sample("s", "own", "answer", "train", found.question or "", "", tuple(refs[: found.asked]), ())
    env = world.open(world.offer(sample), EnvInputs(images, PROMPT, NO_RUNNER))
    return [(m["role"], m["content"]) for m in asyncio.run(imported_messages(found, env, world, images, refs))]


def codevision(**more: Any) -> dict[str, Any]:
    talk = [
        {"from": "human", "value": "<image>Read the title."},
        {"from": "gpt", "value": f"<think>Upside down.</think>\n{CALL}"},
        {"from": "tool", "value": "<image>Here is the processed image."},
        {"from": "gpt", "value": "<think>Readable.</think>\n<answer>Annual report</answer>"},
    ]
    return {"system": "Tools: code_image_tool", "images": ["0.png", "1.png"], "conversations": talk} | more


def test_codevision_calls_are_read_and_the_tool_answers(tmp_path: Path) -> None:
    found = dialogue(tmp_path, codevision(), "sharegpt")
    assert [int(pixels[0, 0, 0]) for pixels in found.images] == [10, 20] and found.asked == 1
    said = led(found, "codevision")
    assert [role for role, _ in said] == ["system", "user", "assistant", "tool", "assistant"]
    assert said[1][1] == "<image>Read the title." and said[3][1] == "<image>Here is the processed image."


def test_thyme_observations_leave_the_assistants_text(tmp_path: Path) -> None:
    text = f"{CODE}\n<sandbox_output><image></sandbox_output>\nIt says STOP.</think>\n<answer>STOP</answer>"
    row = {"image": ["0.png", "1.png"], "question": '<image>\nWhat?\nUser Image Path: "/m/7.jpg"', "response": text}
    found = dialogue(tmp_path, row, "thyme_sft")
    said = led(found, "thyme")
    assert [role for role, _ in said] == ["user", "assistant", "user", "assistant"]
    assert said[1][1] == CODE and said[2][1] == "<sandbox_output><image></sandbox_output>"
    assert said[3][1].startswith("It says STOP.")
    question = generate(0, 0, "train", path=str(tmp_path / "sft.json"), name="own", row="thyme_sft")
    assert (question.question, question.answer, len(question.pictures)) == ("What?", "STOP", 1)


def thyme_row(opened: str) -> dict[str, Any]:
    code = f"<think>Up.<code>\n```python\nimage = Image.open('{opened}')\n```\n</code>"
    text = f"{code}\n<sandbox_output><image></sandbox_output>\nIt says STOP.</think>\n<answer>STOP</answer>"
    question = '<image>\nWhat?\n### User Image Path:** "/m/x/7.jpg"\n### User Image Size:** "60x40"'
    return {"image": ["0.png", "1.png"], "question": question, "response": text}


@each_case("prompt", ["row", "card"])
def test_code_of_others_opens_the_environments_file(prompt: str, tmp_path: Path) -> None:
    """Thyme-SFT names its images by paths of its author's disk, in the question and in the code."""
    said = led(dialogue(tmp_path, thyme_row("/m/x/7.jpg"), "thyme_sft", prompt=prompt), "thyme")
    assert "Image.open('image_0.png')" in said[-3][1] and not any("/m/x" in text for _, text in said)
    if prompt == "row":
        assert 'User Image Path:** "image_0.png"' in said[-4][1]
    with pytest.raises(RowProblem, match=r"'/m/y/9.jpg'.*'/m/x/7.jpg'"):
        led(dialogue(tmp_path, thyme_row("/m/y/9.jpg"), "thyme_sft", prompt=prompt), "thyme")


def test_a_path_is_replaced_whole_and_an_empty_one_never(tmp_path: Path) -> None:
    row = thyme_row("/m/x/7.jpg") | {"question": '<image>\nWhat?\nUser Image Path: "7.jpg"'}
    row["response"] = row["response"].replace("'/m/x/7.jpg'", "'7.jpg'").replace("It says", "17.jpg says")
    said = led(dialogue(tmp_path, row, "thyme_sft"), "thyme")
    assert "open('image_0.png')" in said[-3][1] and "17.jpg says" in said[-1][1]
    empty = thyme_row("a.jpg") | {"question": '<image>\nWhat?\nUser Image Path: ""'}
    said = led(dialogue(tmp_path, empty, "thyme_sft", named='Path: "(.*)"'), "thyme")
    assert "open('a.jpg')" in said[-3][1]


def test_a_convention_names_its_image_by_one_group(tmp_path: Path) -> None:
    for wrong in ("(", "Path: .*", "(a)(b)"):
        with pytest.raises(ConfigError, match=r"reading\.named: .*\(group\)"):
            dialogue(tmp_path, thyme_row("/m/x/7.jpg"), "thyme_sft", named=wrong)


def test_pyvisions_prompt_is_not_doubled_and_its_clues_keep_their_numbers(tmp_path: Path) -> None:
    """The first turn of its rows is the whole of figure 8. Observations are written as the environment writes them."""
    old = (
        "You are an agent.\n\nimage resolution:\nImage Width: 60; Image Height: 40\n\nuser question:\nAnswer the "
        "following Problem with an image provided and put the answer in the format of \\boxed{answer}\n\n"
        "What is it?\n\nRemember to place the final answer in the last part using the format:\n"
        "<answer>\n\\boxed{x}\n</answer>"
    )
    seen = "<interpreter>\nText Result:\n1\nImage Result:\n<image_clue_1><image></image_clue_1></interpreter>"
    talk = [
        {"role": "user", "content": f"<image_clue_0><image></image_clue_0>\n\n{old}"},
        {"role": "assistant", "content": CODE},
        {"role": "user", "content": seen},
        {"role": "assistant", "content": "<answer>\n\\boxed{a}\n</answer>"},
    ]
    row = {"conversations": talk, "images": ["0.png", "1.png"]}
    found = dialogue(tmp_path, row, "pyvision_sft")
    assert found.question == "What is it?"
    said = led(found, "pyvision_image")
    assert said[1] == ("user", "<image>What is it?") and said[3] == ("tool", seen)
    question = generate(0, 0, "train", path=str(tmp_path / "sft.json"), name="own", row="pyvision_sft")
    assert (question.question, question.answer, len(question.pictures)) == ("What is it?", "a", 1)


def test_the_environments_prompt_may_take_the_place_of_the_rows(tmp_path: Path) -> None:
    said = led(dialogue(tmp_path, codevision(), "sharegpt", prompt="card"), "codevision")
    assert "code_image_tool code description" in said[0][1] and "Read the title." in said[1][1]
    assert said[1][1].startswith("<image>") and [role for role, _ in said[2:]] == ["assistant", "tool", "assistant"]


def trl() -> dict[str, Any]:
    call = {"type": "function", "function": ZOOM}
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Q"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Look."}], "tool_calls": [call]},
        {"role": "tool", "name": "zoom", "content": [{"type": "image", "image": URI}, {"type": "text", "text": "ok"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A"}]},
    ]
    return {"images": ["1.png"], "messages": messages, "tools": [{"type": "function", "function": {"name": "zoom"}}]}


def swift() -> dict[str, Any]:
    messages = [
        {"role": "user", "content": "<image>Q"},
        {"role": "assistant", "content": "Look."},
        {"role": "tool_call", "content": json.dumps(ZOOM)},
        {"role": "tool_response", "content": "<image>ok"},
        {"role": "assistant", "content": "A"},
    ]
    return {"images": ["1.png", "0.png"], "messages": messages, "tools": '[{"function": {"name": "zoom"}}]'}


def openai() -> dict[str, Any]:
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": ZOOM["name"], "arguments": json.dumps(ZOOM["arguments"])},
    }
    picture = {"type": "image_url", "image_url": {"url": URI}}
    messages = [
        {"role": "user", "content": [picture, {"type": "text", "text": "Q"}]},
        {"role": "assistant", "content": "Look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "ok"},
        {"role": "user", "content": [picture]},
        {"role": "assistant", "content": "A"},
    ]
    return {"messages": messages, "tools": [{"type": "function", "function": {"name": "zoom"}}]}


@each_case(("row", "kind"), [(trl(), "trl"), (swift(), "swift"), (openai(), "openai")])
def test_calls_beside_the_text_become_text(row: dict[str, Any], kind: str, tmp_path: Path) -> None:
    found = dialogue(tmp_path, row, kind, crops="any", call_space="pixels")  # the shades say which image is which
    assert [int(pixels[0, 0, 0]) for pixels in found.images] == [10 if kind == "openai" else 20, 10]
    assert found.tools[0]["function"] == {"name": "zoom"}
    said = led(found, "native")
    assert [role for role, _ in said] == ["user", "assistant", "tool", "assistant"]
    assert said[1][1] == f"Look.\n{ZOOMED}" and said[2][1].count("<image>") == 1 and "ok" in said[2][1]


@each_case(
    "turn",
    [
        {"reasoning_content": "Small.", "content": "Let me zoom.", "function_call": {**ZOOM}},
        {"reasoning": "Small.", "content": "Let me zoom.", "tool_calls": [{"type": "function", "function": ZOOM}]},
        {"content": [{"type": "thinking", "thinking": "Small."}, {"type": "text", "text": "Let me zoom."}]}
        | {"function_call": {"name": "zoom", "arguments": json.dumps(ZOOM["arguments"])}},
    ],
)
def test_thoughts_and_calls_beside_the_text_are_kept(turn: dict[str, Any], tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URI}}, {"type": "text", "text": "?"}]},
        {"role": "assistant", **turn},
        {"role": "function", "name": "zoom", "content": "Done."},
        {"role": "assistant", "reasoning_content": "Red.", "content": "<answer>red</answer>"},
    ]
    found = dialogue(tmp_path, {"messages": messages}, "openai")
    said = [m["content"] for m in found.messages if m["role"] == "assistant"]
    assert said[0].startswith("<think>Small.</think>Let me zoom.\n<tool_call>") and '"bbox_2d"' in said[0]
    assert said[1] == "<think>Red.</think><answer>red</answer>"


def _messages(*later: dict[str, Any]) -> dict[str, Any]:
    shown = [{"type": "image_url", "image_url": {"url": URI}}, {"type": "text", "text": "?"}]
    return {"messages": [{"role": "user", "content": shown, "reasoning": "none of mine"}, *later]}


def test_thoughts_are_texts_of_the_assistant_that_hold_no_picture_and_no_cipher(tmp_path: Path) -> None:
    hidden = {"type": "reasoning", "reasoning": "gAAAAAB9x", "redacted": True}
    row = _messages(
        {"role": "assistant", "content": [hidden, {"type": "text", "text": "Look."}], "reasoning": {"effort": "low"}},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "reasoning_content": "The <image> shows red.", "content": "Red."},
    )
    said = [m["content"] for m in dialogue(tmp_path, row, "openai").messages]
    assert said == ["<image>?", "Look.", "And?", "<think>The  shows red.</think>Red."]


def test_one_call_that_is_told_twice_is_one_and_a_thought_stands_before_a_call(tmp_path: Path) -> None:
    told = {"content": "", "tool_calls": [{"type": "function", "function": ZOOM}], "function_call": {**ZOOM}}
    nulls = {"content": "Red.", "function_call": {"name": None, "arguments": None}}
    own = {"role": "function_call", "content": json.dumps(ZOOM), "reasoning_content": "Closer."}
    tool = {"role": "tool", "content": "Done."}
    row = _messages({"role": "assistant", **told}, tool, own, tool, {"role": "assistant", **nulls})
    said = [m["content"] for m in dialogue(tmp_path, row, "openai").messages if m["role"] == "assistant"]
    assert [text.count("<tool_call>") for text in said] == [1, 1, 0] and said[2] == "Red."
    assert said[1].startswith("<think>Closer.</think><tool_call>")


def test_a_call_within_a_thought_is_none(tmp_path: Path) -> None:
    thought = "I could run ```python\nprint(2)\n``` or <tool_call>{}</tool_call>, <answer>X</answer>."
    row = _messages({"role": "assistant", "reasoning_content": thought, "content": "<answer>4</answer>"})
    for env in ("native", "codevision"):
        assert [role for role, _ in led(dialogue(tmp_path, row, "openai"), env)][-1] == "assistant"


def test_trls_prompt_and_completion_are_one_trajectory(tmp_path: Path) -> None:
    whole = trl()
    row = {"prompt": whole["messages"][:1], "completion": whole["messages"][1:], "images": whole["images"]}
    asked, parted = dialogue(tmp_path, whole, "trl", crops="any"), dialogue(tmp_path, row, "trl", crops="any")
    assert parted.messages == asked.messages and len(parted.images) == 2
    plain = dialogue(tmp_path, {"prompt": "<image>Q", "completion": "A", "images": ["1.png"]}, "trl")
    assert [(m["role"], m["content"]) for m in plain.messages] == [("user", "<image>Q"), ("assistant", "A")]


def test_a_developer_speaks_as_the_system(tmp_path: Path) -> None:
    row = openai()
    row["messages"].insert(0, {"role": "developer", "content": "Be brief."})
    assert dict(dialogue(tmp_path, row, "openai", crops="any").messages[0]) == {
        "role": "system",
        "content": "Be brief.",
    }


@each_case(("key", "off"), [("weight", 0), ("loss", False)])
def test_a_turn_without_weight_is_shown_and_not_imitated(key: str, off: Any, tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URI}}, {"type": "text", "text": "Q"}]},
        {"role": "assistant", "content": "Bad.", key: off},
        {"role": "user", "content": "No."},
        {"role": "assistant", "content": "Good.", key: type(off)(1)},
    ]
    assert dialogue(tmp_path, {"messages": talk}, "openai").unlearnt == (1,)
    path = tmp_path / "train.json"
    path.write_text(json.dumps([{"messages": talk}, {"messages": talk[:2]}]))
    with pytest.raises(RowProblem, match=r"row 0 of .*answer"):  # "Bad." is none, and "Good." answers "No."
        generate(0, 0, "train", path=str(path), name="own", row="openai")
    with pytest.raises(RowProblem, match=r"row 1 of .*weight"):
        generate(0, 1, "demo-train", path=str(path), name="own", row="openai")


def test_openais_messages_in_a_row_are_one_question(tmp_path: Path) -> None:
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "Describe this."},
        {"role": "user", "content": [{"type": "input_image", "image_url": URI}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": ZOOM}]},
        {"role": "tool", "content": [{"type": "input_text", "text": "done"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "A boat."}]},
    ]
    path = tmp_path / "train.json"
    path.write_text(json.dumps([{"messages": talk}]))
    item = generate(0, 0, "train", path=str(path), name="own", row="openai")
    assert (item.question, item.answer, item.pixels.shape) == ("Describe this.", "A boat.", (40, 60, 3))
    talk[2] = {"role": "assistant", "content": [{"type": "tool_use", "name": "zoom", "input": ZOOM["arguments"]}]}
    with pytest.raises(RowProblem, match="'tool_use'"):
        dialogue(tmp_path, {"messages": talk}, "openai")


def test_calls_that_are_no_json_are_a_bad_row(tmp_path: Path) -> None:
    talk: list[dict[str, Any]] = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    talk[1]["tool_calls"] = 1
    with pytest.raises(RowProblem, match="tool_calls are '1'"):
        dialogue(tmp_path, {"messages": talk}, "openai")
    path = tmp_path / "rows.parquet"
    for value, words in ((b"x", "bytes is not JSON"), (float("nan"), "not JSON compliant")):
        talk[1]["tool_calls"] = [{"name": "zoom", "arguments": {"level": value}}]
        pq.write_table(pa.Table.from_pylist([{"messages": talk}]), path)
        with pytest.raises(RowProblem, match=f"arguments of zoom.*{words}"):
            generate(0, 0, "demo-train", path=str(path), name="own", row="openai")


def test_an_assistant_that_says_nothing_is_a_bad_row(tmp_path: Path) -> None:
    talk = [*codevision()["conversations"][:3], {"from": "gpt", "value": " \n"}]
    with pytest.raises(RowProblem, match="assistant has neither"):
        dialogue(tmp_path, codevision(conversations=talk), "sharegpt")


def test_swifts_places_of_objects_are_no_text(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "<image>Find <ref-object>."}, {"role": "assistant", "content": "<bbox>"}]
    row = {"messages": talk, "images": ["0.png"], "objects": {"ref": ["dog"], "bbox": [[1, 2, 30, 40]]}}
    with pytest.raises(RowProblem, match=r"row 0 of .* have <ref-object> or <bbox>"):
        dialogue(tmp_path, row, "swift")
    with pytest.raises(RowProblem, match="from objects"):  # also from a column named by hand
        dialogue(tmp_path, {**row, "messages": None, "talk": talk}, "swift", {"messages": "talk", "question": "talk"})


def test_swifts_marks_in_other_columns_are_no_places(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "A dog."}]
    row = {"messages": talk, "images": ["0.png"], "objects": {"ref": ["dog"], "bbox": [[1, 2, 30, 40]]}}
    for more in ({"template": "Find <ref-object>."}, {"marks": ["<bbox>"]}, {"solution": "<bbox>"}):
        assert dialogue(tmp_path, row | more, "swift").messages[-1]["content"] == "A dog."


def test_a_function_of_ones_own_gives_demonstrations_by_its_messages(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "A dog."}]
    whole = SetRow(messages=talk, images=["0.png"])
    split = SetRow(question=talk[0]["content"], response="A dog.", images=["0.png"])
    for own in (whole, split):
        found = dialogue(tmp_path, {"x": 1}, cast("Any", lambda _, own=own: own))
        assert found.messages[-1]["content"] == "A dog."


def test_marks_of_swift_are_words_in_other_formats(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "<image>What is <bbox> in HTML?"}, {"role": "assistant", "content": "No tag."}]
    row = {"messages": talk, "images": ["0.png"], "objects": ["page"]}
    assert dialogue(tmp_path, row, "trl").messages[-1]["content"] == "No tag."


def test_mini_o3_is_a_literal_and_never_code(tmp_path: Path) -> None:
    grounding = '<grounding>{"bbox_2d": [0.6, 0.2, 0.7, 0.3], "source": "original_image"}</grounding>'
    talk = [("human", "<image>What number?"), ("gpt", grounding), ("human", "After Action 0:\n<image>.\nGo on.")]
    talk.append(("gpt", "<answer>42</answer>"))
    literal = str([{"from": who, "value": text} for who, text in talk])
    said = led(dialogue(tmp_path, codevision(conversations=literal), "sharegpt", crops="any"), "mini_o3")
    assert [role for role, _ in said] == ["system", "user", "assistant", "user", "assistant"]
    evil = "[{'from': 'human', 'value': __import__('os').getcwd()}]"
    assert texts.chat_of(evil) == evil
    with pytest.raises(RowProblem, match="messages nor a response"):
        dialogue(tmp_path, codevision(conversations=evil), "sharegpt")


def talk(*said: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": who, "value": text} for who, text in said]


HUMAN, TOOL = ("human", "<image>Q"), ("tool", "<image>ok")


@each_case(
    ("change", "reason"),
    [
        ({"images": ["0.png"]}, "markers and images differ in number"),
        ({"images": ["0.png", "1.png", "1.png"]}, "markers and images differ in number"),
        ({"images": ["0.png", "none.png"]}, "no such image 1"),
        ({"conversations": talk(HUMAN, ("gpt", CALL), TOOL)}, "turns in a wrong order"),
        ({"conversations": talk(("gpt", "A"), HUMAN)}, "turns in a wrong order"),
        ({"conversations": talk(HUMAN, ("bard", "A"))}, "unreadable messages"),
        ({"conversations": talk(HUMAN, ("gpt", "see <|image_pad|><image>"))}, "a chat marker in the text"),
        ({"conversations": talk(HUMAN, ("function_call", "zoom it"), TOOL, ("gpt", "A"))}, "unreadable messages"),
    ],
)
def test_damaged_trajectories_have_a_reason(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(RowProblem) as found:
        dialogue(tmp_path, codevision(**change), "sharegpt")
    assert found.value.reason == reason and "row 0 of" in found.value.message


@each_case(
    ("said", "env", "reason"),
    [
        ((HUMAN, ("gpt", CALL), TOOL, ("gpt", "A")), "codev", "an observation without a call"),
        ((HUMAN, ("gpt", "Look."), TOOL, ("gpt", "A")), "codevision", "an observation without a call"),
        ((HUMAN, ("gpt", "<answer>A</answer>"), ("human", "<image>B?"), ("gpt", CALL)), "codevision", "a call without"),
        ((HUMAN, ("gpt", "<tool_call>{oops</tool_call>"), TOOL, ("gpt", "A")), "native", "a call that cannot be"),
    ],
)
def test_calls_are_checked_in_the_environments_syntax(
    said: tuple[tuple[str, str], ...], env: str, reason: str, tmp_path: Path
) -> None:
    found = dialogue(tmp_path, codevision(conversations=talk(*said)), "sharegpt")
    with pytest.raises(RowProblem) as problem:
        led(found, env)
    assert problem.value.reason.startswith(reason)


def test_turns_without_calls_stay_questions(tmp_path: Path) -> None:
    said = talk(HUMAN, ("gpt", "<answer>A</answer>"), ("human", "And <image>?"), ("gpt", "<answer>B</answer>"))
    found = dialogue(tmp_path, codevision(conversations=said), "sharegpt")
    assert found.place == Place(str(tmp_path / "sft.json"), 0)
    assert [role for role, _ in led(found, "codevision")] == ["system", "user", "assistant", "user", "assistant"]


def test_a_crop_that_is_not_the_picture_after_it_is_a_bad_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 255, (12, 20, 3), np.uint8).repeat(20, 0).repeat(20, 1)
    code = "image = Image.open(image_path)\nimage.crop((120, 80, 360, 240)).save('a.png')\nprint('a.png')"
    said = f"<think>Up.\n<code>\n```python\n{code}\n```\n</code>\n<sandbox_output><image></sandbox_output>\nSo.</think>"
    row = {"image": ["p.png", "q.png"], "question": "<image>\nWhat?", "response": f"{said}<answer>a</answer>"}
    (tmp_path / "p.png").write_bytes(canvas.png(photo))
    (tmp_path / "q.png").write_bytes(canvas.png(np.ascontiguousarray(photo[80:240, 120:360])))
    assert len(led(dialogue(tmp_path, row, "thyme_sft"), "thyme")) == 4
    (tmp_path / "q.png").write_bytes(canvas.png(np.ascontiguousarray(photo[80:240, 0:240])))
    with pytest.raises(RowProblem, match=r"\[120.0, 80.0, 360.0, 240.0\].*240 x 160") as found:
        led(dialogue(tmp_path, row, "thyme_sft"), "thyme")
    assert found.value.reason == "a crop that is not the picture after it"
    assert len(led(dialogue(tmp_path, row, "thyme_sft", crops="any"), "thyme")) == 4
    row["response"] = row["response"].replace(".save(", ".rotate(90).save(")
    assert len(led(dialogue(tmp_path, row, "thyme_sft"), "thyme")) == 4  # not compared
