"""MVToolBench's items from a miniature of HierText in its public format: what is asked, turned and boxed."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stages.synth import Config, run
from vtcli.config import compose
from vtcli.data.generators.rotflip import TRANSFORMS
from vtcli.data.importers.hiertext import LARGEST, generate, questions, reads, survey
from vtcli.data.importers.problems import RowProblem
from vtcli.errors import InputError
from vtcli.signals.code import required

WIDE, HIGH = 1600, 1200  # so 0.01 % are 192 px²


def polygon(x: int, y: int, w: int, h: int) -> list[list[int]]:
    return [[x, y], [x + w, y], [x + w, y + h], [x, y + h]]


def node(text: str, x: int, y: int, w: int, h: int, **more: Any) -> dict[str, Any]:
    clear = {"legible": True, "handwritten": False, "vertical": False}
    return {"vertices": polygon(x, y, w, h), "text": text} | clear | more


def line(text: str, x: int, y: int, word: tuple[int, int] = (18, 10), **more: Any) -> dict[str, Any]:
    words = text.split()
    inner = [node(said, x + i * (word[0] + 4), y, *word, **more) for i, said in enumerate(words)]
    return node(text, x, y, len(words) * (word[0] + 4), word[1]) | {"words": inner} | more


def paragraph(*lines: dict[str, Any]) -> dict[str, Any]:
    x, y = lines[0]["vertices"][0]
    wide, high = (max(entry["vertices"][2][axis] for entry in lines) for axis in (0, 1))
    return {"vertices": polygon(x, y, wide - x, high - y), "legible": True, "lines": list(lines)}


PAGE = [
    paragraph(line("Busy bees buzz", 100, 200), line("on black Television", 100, 212)),
    paragraph(line("Large letters here", 600, 600, (80, 60))),
    paragraph(line("Busier with smudges", 900, 300, legible=False)),
    paragraph(line("Standing tall text", 1000, 800, vertical=True)),
]


def copy(folder: Path, count: int = 5, size: tuple[int, int] = (WIDE, HIGH)) -> Path:
    (folder / "gt").mkdir(parents=True)
    (folder / "validation").mkdir()
    entries = [
        {"image_id": f"i{n}", "image_width": WIDE, "image_height": HIGH, "paragraphs": PAGE if n else PAGE[1:]}
        for n in range(count + 1)
    ]
    text = json.dumps({"info": {"date": "x", "version": "1"}, "annotations": entries}, indent=1)
    (folder / "gt" / "validation.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    pixels = np.full((size[1], size[0], 3), 230, np.uint8)
    pixels[200:224, 100:166] = 30  # the first paragraph
    for n in range(count + 1):
        Image.fromarray(pixels).save(folder / "validation" / f"i{n}.jpg", quality=95)
    return folder


def test_only_small_legible_text_with_one_name_is_asked_about() -> None:
    found = list(questions(PAGE, WIDE * HIGH, LARGEST))
    asked = {(q.kind, q.question): q.answer for q in found}
    assert asked["line", "What does the line beginning with ‘Busy’ say?"] == "Busy bees buzz"
    assert asked["word", "Which word comes after ‘bees’ in the line beginning with ‘Busy’?"] == "buzz"
    letter = "How many times does the letter ‘b’ appear in the paragraph ending with ‘Television’, capitals included?"
    assert asked["letter", letter] == "4"
    follows = "Which word follows ‘black’ in the paragraph beginning with ‘Busy’?"
    assert asked["retrieval", follows] == "Television"
    for word in ("Large", "Busier", "Standing"):
        assert not [question for _, question in asked if word in question]
    assert not [question for _, question in asked if any(cue in question for cue in ("left", "right", "top", "box"))]
    assert {q.box for q in found if q.kind == "word" and q.answer == "bees"} == {(122.0, 200.0, 140.0, 210.0)}
    twice = [*PAGE, paragraph(line("Busy bees again", 300, 900))]
    again = list(questions(twice, WIDE * HIGH, LARGEST))
    assert not [q for q in again if "line beginning with ‘Busy’" in q.question]
    # 18 x 10 px are 180 px²: below 0.01 % of this image, and not of a smaller one
    assert not [q for q in questions(PAGE, WIDE * HIGH // 2, LARGEST) if q.kind == "word"]


def test_every_way_of_turning_comes_equally_often_and_boxes_go_along(tmp_path: Path) -> None:
    folder = copy(tmp_path / "hiertext", 10)
    where = {"path": str(folder / "gt" / "validation.jsonl.gz")}
    assert survey("test", **where).rows == 10  # the eleventh has no small text
    items = [generate(0, n, "test", **where) for n in range(10)]
    assert Counter(item.truth["transform"] for item in items) == dict.fromkeys(list(TRANSFORMS)[1:], 2)
    for item in items:
        x1, y1, x2, y2 = (round(v) for v in item.truth["boxes"][0]["box"])
        assert item.pixels[y1:y2, x1:x2].mean() < 60, item.truth  # the text, and not the ground
        assert required(item.truth)[-1] == "crop" and len(required(item.truth)) == 2
        high, wide = item.pixels.shape[:2]
        assert (wide, high) == ((HIGH, WIDE) if item.truth["transform"] in ("rot90", "rot270") else (WIDE, HIGH))
    assert [items[3].question, items[3].truth] == [(again := generate(0, 3, "test", **where)).question, again.truth]
    assert [path.name for path in reads("test", 2, **where)] == ["validation.jsonl.gz", "i1.jpg", "i2.jpg"]
    with pytest.raises(InputError, match="has 10 images with small text, and item 10 is asked for"):
        generate(0, 10, "test", **where)


def test_a_missing_image_one_of_another_size_and_a_foreign_file_are_named(tmp_path: Path) -> None:
    folder = copy(tmp_path / "hiertext", 2, (800, 600))
    where = {"path": str(folder / "gt" / "validation.jsonl.gz")}
    with pytest.raises(RowProblem, match="has 800 x 600 pixels, and its boxes are of 1600 x 1200"):
        generate(0, 0, "test", **where)
    (folder / "validation" / "i1.jpg").unlink()
    with pytest.raises(RowProblem, match=r"its image .*i1\.jpg cannot be read"):
        generate(0, 0, "test", **where)
    other = tmp_path / "coco.json"
    entry = {"image_id": "i", "image_width": 0, "image_height": HIGH, "paragraphs": PAGE}
    for strange in (
        {"id": 1, "bbox": [1, 2, 3, 4]},
        entry,
        entry | {"image_width": 9, "paragraphs": [paragraph(PAGE[0])]},
    ):
        own = tmp_path / f"{len(json.dumps(strange))}.json"
        own.write_text(json.dumps({"annotations": [strange]}))
        with pytest.raises(InputError, match="is not an annotation of HierText"):
            survey("test", path=str(own))
    other.write_text(json.dumps({"annotations": [{"id": 1, "bbox": [1, 2, 3, 4]}]}))
    with pytest.raises(InputError, match="is not an annotation of HierText"):
        generate(0, 0, "test", **where | {"path": str(other)})


def test_the_command_makes_the_benchmark(tmp_path: Path) -> None:
    folder, key = copy(tmp_path / "hiertext", 5), "data.tasks.mvtoolbench.generate"
    words = ["data=mvtoolbench", f"{key}.path={folder}/gt/validation.jsonl.gz"]
    words += ["scale=tiny", "tracker=none", f"home={tmp_path}/home", "synth.workers=1", "synth.forms=[answer]"]
    made = run(compose.build(Config, compose.load("synth", words)))
    assert made is not None and made.manifest.summary["rows"]["answer-test"] == {"mvtoolbench": 5}
