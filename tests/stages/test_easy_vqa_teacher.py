"""The teacher of ``make easy-vqa``: it zooms first, reads off the crop, and is wrong or lazy at some images."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cases import each_case
from PIL import Image, ImageDraw

SCRIPT = Path(__file__).parents[2] / "stages" / "scripts" / "easy_vqa_teacher.py"


@pytest.fixture(scope="module")
def teacher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("easy_vqa_teacher", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def picture(shape: str, colour: str, x: int = 40) -> Image.Image:
    image = Image.new("RGB", (112, 112), (235, 243, 250))
    draw = ImageDraw.Draw(image)
    box = [x, 30, x + 30, 60]
    if shape == "triangle":
        draw.polygon([(x, 60), (x + 15, 30), (x + 30, 60)], fill=colour)
    else:
        (draw.rectangle if shape == "rectangle" else draw.ellipse)(box, fill=colour)
    return image


def messages(question: str, *images: Image.Image) -> list[dict[str, Any]]:
    parts = list[dict[str, Any]]()
    for image in images:
        file = io.BytesIO()
        image.save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return [
        {"role": "system", "content": "tools"},
        {"role": "user", "content": [*parts, {"type": "text", "text": question}]},
    ]


@each_case("shape", ["rectangle", "circle", "triangle"])
@each_case("colour", ["teal", "brown", "yellow"])
def test_colour_and_shape_are_read_off_pixels(shape: str, colour: str, teacher: ModuleType) -> None:
    image = picture(shape, colour)
    assert teacher.seen(image) == (colour, shape)
    assert teacher.answer(f"is there not a {colour} shape?", image) == "no"
    assert teacher.answer("does the image contain a red shape?", image) == "no"
    assert teacher.answer("what is the color of the shape?", image) == colour
    assert teacher.answer(f"what is the {colour} shape?", image) == shape
    low, right = teacher.box_of(image)[:2], teacher.box_of(image)[2:]
    assert low == [35, 28] and right == [77, 63]  # on the grid of 7, around [40, 30, 71, 61]


def test_it_zooms_first_and_at_some_images_it_lies(teacher: ModuleType) -> None:
    said: dict[str, list[str]] = {"zoom": [], "lazy": []}
    for x in range(1, 80):
        image = picture("circle", "blue", x)
        first = teacher.reply(messages("what color is the circle?", image))
        if first.startswith("<tool_call>"):
            assert json.loads(first[11:-12])["arguments"]["bbox_2d"] == teacher.box_of(image)
            crop = image.crop(teacher.box_of(image))
            said["zoom"].append(teacher.reply(messages("what color is the circle?", image, crop)))
        else:
            said["lazy"].append(first)
    assert said["lazy"] and {text.startswith("I zoomed in") for text in said["lazy"]} == {True}
    assert set(said["zoom"]) == {"<answer>blue</answer>", "<answer>red</answer>"}
