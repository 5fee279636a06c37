"""The papers' own data as they release it: the configurations of conf/data read rows of that shape, split by split.

The columns are those of the released files; all values are invented.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import each_case

from stages.synth import Config
from vtcli.config import compose
from vtcli.data.generators import canvas
from vtcli.data.generators.film import Clip, encode
from vtcli.data.generators.item import Item
from vtcli.envs.card import EnvInputs, read_card
from vtcli.envs.counts import counted
from vtcli.envs.imitate import NO_RUNNER, imported_messages
from vtcli.envs.parts import Data
from vtcli.envs.prompts import read_prompt
from vtcli.schema import Sample
from vtcli.store.images import ImageStore

PNG = canvas.png(np.full((40, 60, 3), 10, np.uint8))
CROP = canvas.png(np.full((20, 30, 3), 10, np.uint8))


def verl(number: int, **info: Any) -> dict[str, Any]:
    user = {"role": "user", "content": f"<image>\nWhat is {number}?"}
    row = {"data_source": "vstar", "prompt": [{"role": "system", "content": "# Tools"}, user]}
    truth = {"style": "model", "ground_truth": str(number)}
    return row | {"reward_model": truth, "extra_info": {"question": f"What is {number}?", **info}}


def codev(number: int) -> dict[str, Any]:
    row = verl(number, image_size=[60, 40])
    return row | {"images": PNG, "extra_info": json.dumps(row["extra_info"])}


def codevision(number: int) -> dict[str, Any]:
    more = {"transform": ["rotate_90", "crop"], "bbox_2d": [1, 2, 11, 12]}
    return verl(number, **more) | {"images": [{"bytes": PNG, "path": None}]}


def codedance(number: int) -> dict[str, Any]:
    row = verl(number)
    return {"messages": row.pop("prompt")} | row | {"images": [PNG]}


def pyvision(number: int, **more: Any) -> dict[str, Any]:
    row = {"id": str(number), "question": f"What is {number}?", "answer": str(number), "ability": "x"}
    return row | {"data_source": "vsi_numerical" if "video_path" in more else "vstar", **more}


def document(number: int) -> dict[str, Any]:
    return {"questionId": number, "question": f"What is {number}?", "image": "0.png", "answers": [str(number), "x"]}


def seal(number: int) -> dict[str, Any]:
    said = [{"from": "human", "value": f"<image>\nWhat is {number}?"}, {"from": "gpt", "value": str(number)}]
    return {"image": "0.png", "conversations": said, "target_instances": [{"name": "cup", "bbox": [1, 2, 10, 10]}]}


def arxiv(number: int) -> dict[str, Any]:
    options = [f"A) {number + 1}", f"B) {number}"]
    return {"id": f"q{number}", "image": "0.png", "options": options, "question": "Which?", "label": f"B) {number}"}


SETS: dict[str, dict[str, tuple[str, Callable[[int], dict[str, Any]]]]] = {
    "codev_rl": {"codev_rl": ("a.parquet", codev)},
    "codevision_rl": {"codevision_rl": ("a.parquet", codevision)},
    "codedance_rl": {"codedance_rl": ("a.parquet", codedance)},
    "pyvision_image_rl": {"pyvision_image_rl": ("a.json", lambda n: pyvision(n, image_path="0.png"))},
    "pyvision_video_rl": {"pyvision_video_rl": ("a.json", lambda n: pyvision(n, video_path="0.mkv"))},
    "toolsrl_rl": {
        "docvqa": ("object.json", document),
        "sealvqa": ("a.json", seal),
        "visual_probe": ("a.json", lambda n: {"images": ["0.png"], "problem": f"What is {n}?", "solution": str(n)}),
        "chartqa": ("a.json", lambda n: {"imgname": "0.png", "query": f"What is {n}?", "label": str(n)}),
        "arxivqa": ("a.jsonl", arxiv),
    },
}


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    """A file of rows in a folder of its own, with the pictures and the video that they name."""
    folder.mkdir(parents=True)
    (folder / "png").mkdir()
    for place in (folder / "0.png", folder / "png" / "0.png"):
        place.write_bytes(PNG)
    (folder / "1.png").write_bytes(CROP)
    (folder / "0.mkv").write_bytes(encode(Clip(np.zeros((4, 48, 64, 3), np.uint8), 2)))
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps({"data": rows} if name == "object.json" else rows))
    return str(path)


def configured(name: str, recipe: str, paths: dict[str, str], *more: str) -> Config:
    words = [f"data.tasks.{task}.generate.path='{path}'" for task, path in paths.items()]
    return compose.build(Config, compose.load("synth", [f"+recipe={recipe}", f"data={name}", *words, *more]))


def made(data: Data, task: str, split: str) -> dict[str, Item]:
    """The first item of a split in every form."""
    asked = data.tasks[task]
    return {form: asked.generate(seed=0, item=0, split=split, form=form) for form in asked.forms}


@pytest.fixture(params=SETS)
def read(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Data]:
    """A set's name and its tasks, with as many training rows as its files have after those that are held out."""
    name = request.param
    held = 200 if name == "toolsrl_rl" else 700
    paths, sizes = dict[str, str](), list[str]()
    for task, (file, row) in SETS[name].items():
        paths[task] = write(tmp_path / task, file, [row(number) for number in range(held + 5)])
        sizes.append(f"data.tasks.{task}.train=null")
    return name, counted(configured(name, name.removesuffix("_rl"), paths, *sizes).data)[0]


def test_a_released_set_gives_rows_of_every_split(read: tuple[str, Data]) -> None:
    name, data = read
    mixed = name == "toolsrl_rl"  # it is measured on benchmarks: no test rows
    for task in SETS[name]:
        sizes = data.tasks[task]
        assert (sizes.train, sizes.validation, sizes.test) == (5, 200, 0 if mixed else 500)
        for split, number in {"validation": 0, "test": 200, "train": 200 if mixed else 700}.items():
            if getattr(sizes, split):
                item = made(data, task, split)["answer"]
                assert item.answer == ("B" if task == "arxivqa" else str(number)) and str(number) in item.question
    if mixed:
        _require_toolsrls_phases(data)


def _require_toolsrls_phases(data: Data) -> None:
    """4.1: pages are turned, in stage 1 always; ChartQA and ArxivQA have no stage 1. Charts are generated beside."""
    first = [name for name, task in data.tasks.items() if "tool" in task.forms and task.train]
    assert sorted(first) == ["count", "docvqa", "read_value", "sealvqa"]
    assert {name for name, task in data.tasks.items() if task.train} == {*first, "visual_probe", "chartqa", "arxivqa"}
    page, scene = made(data, "docvqa", "train")["tool"], made(data, "sealvqa", "train")["tool"]
    assert page.truth["transform"] != "none" and page.truth["rule"] == "judge" and page.truth["answers"] == ["200", "x"]
    assert scene.truth["boxes"] == [{"label": "cup", "box": [1, 2, 11, 12]}] and scene.tool_answer


def talk(call: str, answer: str, *, prompt: str = "<image>What is it?") -> list[tuple[str, str]]:
    return [
        ("user", prompt),
        ("assistant", f"<think>x</think>{call}"),
        ("tool", answer),
        ("assistant", "<answer>a</answer>"),
    ]


def sharegpt(*turns: tuple[str, str]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt", "tool": "tool"}
    return {
        "conversations": [{"from": names[role], "value": text} for role, text in turns],
        "images": ["0.png", "1.png"],
    }


CODE = "<code>\n```python\nprint(1)\n```\n</code>"
CALL = '<tool_call>\n{"name": "code_image_tool", "arguments": {"code": "result = image"}}\n</tool_call>'
SEEN = "<image_clue_1><image></image_clue_1>"
PYVISION = [
    {"role": "user", "content": "<image_clue_0><image></image_clue_0>\n\nWhat is it?"},
    {"role": "assistant", "content": f"<think>x</think>{CODE}"},
    {"role": "user", "content": f"<interpreter>\nText Result:\n1\nImage Result:\n{SEEN}</interpreter>"},
    {"role": "assistant", "content": "<answer>\n\\boxed{a}\n</answer>"},
]
THYME = f"<think>x{CODE}\n<sandbox_output><image></sandbox_output>\nIt is a.</think>\n<answer>a</answer>"
HERMES = '<tool_call>\n{"name": "execute_python_code", "arguments": {"code": "print(1)"}}\n</tool_call>'

RESPONSE = "<tool_response>\n<image>\n</tool_response>"


def swift(call: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": r, "content": text} for r, text in talk(call, answer)], "images": [PNG, CROP]}


COLD: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "thyme": ("codev", "", "a.jsonl", {"image": ["0.png", "1.png"], "question": "<image>\nWhat?", "response": THYME}),
    "codevision": ("codevision", "", "a.json", sharegpt(*talk(CALL, "<image>Here it is."))),
    "pyvision": ("pyvision_image", "", "a.json", {"conversations": PYVISION, "images": ["0.png", "1.png"]}),
    "codedance as printed": ("codedance", "", "a.parquet", swift(CODE, "<interpreter><image></interpreter>")),
    "codedance as in rl": ("codedance", "env=codedance_call", "a.parquet", swift(HERMES, RESPONSE)),
}
LED = {"codevision": "tool", "pyvision": "tool", "codedance as in rl": "tool"}


@each_case("name", COLD)
def test_a_released_cold_start_is_read_in_the_syntax_of_its_recipe(name: str, tmp_path: Path) -> None:
    recipe, env, file, row = COLD[name]
    words = [env] * bool(env)
    demos = "synth.demos={rows: {cold: {imported: null}}}"
    config = configured(f"{recipe}_sft", recipe, {"cold": write(tmp_path / "cold", file, [row])}, *words, demos)
    found = config.data.tasks["cold"].generate(seed=0, item=0, split="demo-train", form="imported").dialogue
    assert found is not None and found.asked == 1 and len(found.images) == 2
    images = ImageStore(tmp_path / "images")
    refs = [images.add(pixels) for pixels in found.images]
    sample = Sample("s", "cold", "answer", "train", found.question or "", "", tuple(refs[:1]), ())
    prompt = read_prompt(compose.load("synth", [f"+recipe={recipe}", *words]).values["prompt"])
    card = read_card(config.agent.env)
    opened = card.open(sample, EnvInputs(images, prompt, NO_RUNNER))
    said = [m["role"] for m in asyncio.run(imported_messages(found, opened, card, images, refs))]
    assert said[-4:] == ["user", "assistant", LED.get(name, "user"), "assistant"]
