"""Miniatures of other people's trajectories, in the exact form in which each project writes them."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

Row = Mapping[str, Any]

RED = (100, 40, 160, 100)
"""Box of the red disc's square in ``picture``."""

ELSEWHERE = (0, 100, 60, 160)


def picture(shift: int = 0) -> Image.Image:
    """A grey gradient of 200 x 160 with a red square."""
    y, x = np.mgrid[0:160, 0:200]
    pixels = np.stack([(x + shift) % 200, (x + y) % 200, (y + shift) % 200], axis=-1).astype(np.uint8)
    pixels[RED[1] : RED[3], RED[0] : RED[2]] = (250, 20, 20)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def uri(image: Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


def call(box: Sequence[int], name: str = "image_zoom_in_tool") -> str:
    told = json.dumps({"name": name, "arguments": {"bbox_2d": list(box), "label": "disc"}})
    return f"<think>Closer.</think>\n<tool_call>\n{told}\n</tool_call>"


THINK = (
    "\nThink first, call **image_zoom_in_tool** if needed, then answer. Format strictly as:  <think>...</think>  "
    "<tool_call>...</tool_call> (if tools needed)  <answer>...</answer> "
)
ASKED = "What is the colour of the disc?"
PROMPT = f"Question: {ASKED}\nOptions: \nA. blue\nB. red\n\n{THINK}"


def deepeyes(image: str, box: Sequence[int] | None, said: str, **row: Any) -> Row:
    """A line of ``result_direct_attributes_MODEL.jsonl``."""

    def shown(text: str) -> dict[str, Any]:
        blank = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,"}}
        return {"role": "user", "content": [blank, {"type": "text", "text": text}]}

    chat = [{"role": "system", "content": "You are a helpful assistant."}, shown(PROMPT)]
    if box is not None:
        chat += [{"role": "assistant", "content": call(box)}, shown(THINK)]
    chat.append({"role": "assistant", "content": f"<think>So.</think><answer>{said}</answer>"})
    own = {"image": image, "question": ASKED, "answer": "red", "answer_choice": "B", "pred_ans": said}
    return {**own, "pred_output": chat, "status": "success", **row}


def hrbench(box: Sequence[int] | None, said: str) -> Row:
    """A line of DeepEyes' ``result_hr_bench_4k_MODEL.jsonl``: no image, and its stop string is not in the turns."""
    row = dict(deepeyes("", box, said, answer="B", answer_str="red", category="single"))
    chat = [dict(message) for message in row["pred_output"]]
    for message in chat:
        if message["role"] == "assistant" and isinstance(message["content"], str):
            message["content"] = message["content"].removesuffix("\n</tool_call>")
    del row["image"], row["answer_choice"]
    return {**row, "pred_output": chat}


def verl(question: str, box: Sequence[int] | None, said: str, truth: str = "red") -> Row:
    """A line of ``STEP.jsonl`` of verl's ``rollout_data_dir``: decoded without special tokens."""
    turn = f"{call(box)}\nuser\n<tool_response>\n{THINK}\n</tool_response>\nassistant\n" if box is not None else ""
    asked = f"system\nYou are a helpful assistant.\nuser\n{question}{THINK}\nassistant\n"
    return {"input": asked, "output": f"{turn}<answer>{said}</answer>", "gts": truth, "score": 0.5, "step": 3}


def thyme(box: Sequence[int] | None, said: str) -> Row:
    """A row of Thyme-SFT: code and what it showed stand inside of the response; the first image is the question's."""
    images = [png(picture())]
    code = ""
    if box is not None:
        images.append(png(picture().crop(tuple(box))))
        x1, y1, x2, y2 = box
        lines = (
            f"from PIL import Image\nimage = Image.open('a.jpg')\nimage.crop(({x1}, {y1}, {x2}, {y2})).save('b.jpg')"
        )
        code = f"<code>\n```python\n{lines}\n```\n</code>\n<sandbox_output><image></sandbox_output>\n"
    question = f'<image>\n{ASKED}\n### User Image Path:** "a.jpg"\n### User Image Size:** "200x160"\n'
    response = f"<think>Look.\n{code}Clear.</think>\n<answer>{said}</answer>"
    return {
        "answer": "red",
        "question": question,
        "response": response,
        "image": [{"bytes": data, "path": None} for data in images],
    }


def pixel_reasoner(box: Sequence[int] | None, said: str) -> Row:
    """A row of Pixel-Reasoner's ``message_list``: typed parts, pictures in the user's turns."""

    def part(image: Image.Image) -> dict[str, Any]:
        return {"type": "image", "image": uri(image)}

    user = {"role": "user", "content": [part(picture()), {"type": "text", "text": ASKED}]}
    chat: list[dict[str, Any]] = [{"role": "system", "content": [{"type": "text", "text": "Help."}]}, user]
    if box is not None:
        told = json.dumps({"name": "crop_image", "arguments": {"bbox_2d": list(box), "target_image": 1}})
        said_first = [{"type": "text", "text": f"Closer.\n<tool_call>\n{told}\n</tool_call>"}]
        seen = [{"type": "text", "text": "Here is the crop: "}, part(picture().crop(tuple(box)))]
        chat += [{"role": "assistant", "content": said_first}, {"role": "user", "content": seen}]
    chat.append({"role": "assistant", "content": [{"type": "text", "text": f"It is \\boxed{{{said}}}"}]})
    return {"message_list": chat, "answer": "red"}


def inspect_log(rows: Sequence[tuple[Sequence[int] | None, str]]) -> Row:
    """A log of inspect-ai as JSON, with its pictures as attachments."""
    return {
        "version": 2,
        "status": "success",
        "eval": {"task": "vstar", "model": "openai/other"},
        "samples": [_inspect_sample(n, box, said) for n, (box, said) in enumerate(rows)],
    }


def inspect_zip(path: Path, log: Row) -> Path:
    """The same log as inspect-ai's ``.eval``: members compressed by zstd, which Python's ``zipfile`` does not write."""
    with zipfile.ZipFile(path, "w") as opened:
        for name, value in [
            ("header.json", log["eval"]),
            *((f"samples/{s['id']}_epoch_1.json", s) for s in log["samples"]),
        ]:
            data = json.dumps(value).encode()
            opened.writestr(name, pa.Codec("zstd").compress(data, asbytes=True))
            member = opened.getinfo(name)  # the directory is written at the end
            member.compress_type, member.file_size = 93, len(data)
    return path


def _inspect_sample(number: int, box: Sequence[int] | None, said: str) -> Row:
    kept = {"a1": uri(picture(number))}

    def part(key: str) -> dict[str, Any]:
        return {"type": "image", "image": f"attachment://{key}", "detail": "auto"}

    user = {"id": "m1", "role": "user", "source": "input", "content": [part("a1"), {"type": "text", "text": ASKED}]}
    chat: list[dict[str, Any]] = [user]
    if box is not None:
        kept["a2"] = uri(picture(number).crop(tuple(box)))
        asked = {"id": "c1", "function": "image_zoom_in_tool", "arguments": {"bbox_2d": list(box)}, "type": "function"}
        chat.append({"id": "m2", "role": "assistant", "content": "Closer.", "tool_calls": [asked]})
        chat.append(
            {
                "id": "m3",
                "role": "tool",
                "content": [part("a2")],
                "tool_call_id": "c1",
                "function": "image_zoom_in_tool",
            }
        )
    chat.append({"id": "m4", "role": "assistant", "content": f"ANSWER: {said}", "model": "openai/other"})
    return {
        "id": number,
        "epoch": 1,
        "input": ASKED,
        "target": "red",
        "messages": chat,
        "metadata": {"dataset": "vstar"},
        "attachments": kept,
    }


def lines(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
