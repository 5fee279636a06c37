"""Rows of others that were taken wrongly without a word: the right value, or the reason for which they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vtcli.data.generators.item import Item
from vtcli.data.importers.problems import RowProblem
from vtcli.data.importers.rows import generate
from vtcli.schema import Sample
from vtcli.signals import rules

BOX = (35, 5, 58, 20)  # of the stored pixels, 100 x 60
UPRIGHT = {1: (35, 5, 58, 20), 2: (42, 5, 65, 20), 3: (42, 40, 65, 55), 4: (35, 40, 58, 55)} | {
    5: (5, 35, 20, 58), 6: (40, 35, 55, 58), 7: (40, 42, 55, 65), 8: (5, 42, 20, 65)
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Rows, and the value of the first one; or the reason for which it is refused, as text."""

    rows: tuple[Mapping[str, Any], ...]
    right: Any
    of: Callable[[Item], Any] = lambda item: item.answer
    reading: Mapping[str, Any] | None = None
    columns: Mapping[str, Any] | None = None
    kind: str | None = None


def case(*rows: Mapping[str, Any], right: Any, **more: Any) -> Case:
    plain = {"question": "What is red?", "answer": "a box", "image": "square.png"}
    return Case(
        tuple(row if "messages" in row or "conversations" in row else plain | row for row in rows), right, **more
    )


def boxes(item: Item) -> list[list[int]]:
    return [[round(v) for v in box["box"]] for box in item.truth.get("boxes", [])]


def shows_red(item: Item) -> bool:
    """Whether the one box is red throughout."""
    x1, y1, x2, y2 = boxes(item)[0]
    return bool((item.pixels[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1, 1] < 100).all())


def boxed(picture: str, *box: float, **more: Any) -> dict[str, Any]:
    return {"image": picture, "boxes": [{"label": "red", "box": list(box)}], **more}


def options(answer: Any, *texts: str) -> dict[str, Any]:
    return {"answer": answer, "options": list(texts)}


def asked(*said: tuple[str, str]) -> dict[str, Any]:
    return {"image": "square.png", "conversations": [{"from": who, "value": text} for who, text in said]}


def located(picture: str, **more: Any) -> dict[str, Any]:
    """LLaVA's row with SealVQA's boxes: BOX, as x, y, width and height."""
    talk = asked(("human", "<image>\nWhat is red?"), ("gpt", "a box"))
    return talk | {"image": picture, "target_instances": [{"name": "red", "bbox": [35, 5, 23, 15]}], **more}


def verl(picture: str, **more: Any) -> dict[str, Any]:
    """CodeVision's row with BOX."""
    info = {"question": "What is red?", "answer": "a box", "bbox_2d": list(BOX)}
    return {"images": [picture], "image": None, "extra_info": info, **more}


def called(*answers: tuple[str, str]) -> dict[str, Any]:
    """Two calls, a and b, and what is answered."""
    calls = [{"id": n, "type": "function", "function": {"name": n, "arguments": "{}"}} for n in ("a", "b")]
    shown = [{"type": "image_url", "image_url": {"url": "square.png"}}, {"type": "text", "text": "How large?"}]
    tools = [{"role": "tool", "tool_call_id": name, "content": text} for name, text in answers]
    talk = [{"role": "user", "content": shown}, {"role": "assistant", "content": "Both.", "tool_calls": calls}, *tools]
    return {"messages": [*talk, {"role": "assistant", "content": "50 and 100"}]}


def observation(item: Item) -> str:
    assert item.dialogue is not None
    return next(m["content"] for m in item.dialogue.messages if m["role"] == "tool")


def shades(item: Item) -> list[int]:
    """The green of the pictures of a trajectory, in order."""
    assert item.dialogue is not None
    return [int(pixels[0, 0, 1]) for pixels in item.dialogue.images]


def pair(item: Item) -> tuple[str, str]:
    return item.question, item.answer


def pays(*replies: str) -> Callable[[Item], list[float]]:
    """What a row's rule gives to each of some replies."""

    def scores(item: Item) -> list[float]:
        truth = {"rule": item.truth["rule"], **item.truth}
        sample = Sample("s", "own", "answer", "train", item.question, item.answer, (), (), truth)
        return [rules.score(sample, reply)[0] for reply in replies]

    return scores


def several(image: int) -> dict[str, Any]:
    """Two pictures, and a box that says of which it is."""
    box = {"label": "x", "box": [1, 1, 9, 9], "image": image}
    return {"image": None, "images": ["square.png", "wide.png"], "boxes": [box]}


STORED: dict[str, Any] = {"reading": {"box_exif": "stored"}}
KEY: dict[str, Any] = {"columns": {"options": "options"}}
EXIF, SHAPE = "boxes of a picture with an EXIF orientation", "a resized image of another shape"
SIZE = "a picture of another size than its row gives"
SEVERAL, DEAD = "boxes, and several images", "an answer that is wrong under its own rule"
MAYBE, NONE = "an answer that may be an index", "options without the answer"
ABSENT = "an answer without its options"
SIZES: dict[str, Any] = {"reading": {"box_space": "resized"}, "columns": {"box_size": "size"}}
INDEX: dict[str, Any] = {**KEY, "reading": {"answer_is": "index"}}
TEXT: dict[str, Any] = {**KEY, "reading": {"answer_is": "text"}}
LETTER: dict[str, Any] = {**KEY, "reading": {"answer_is": "letter"}}
GREETED = (("human", "Hello, can you help me?"), ("gpt", "Of course."))
ASKED = (("human", "<image>\nWhat is red?"), ("gpt", "a box"))

CASES: dict[str, Case] = {
    # 23: the picture is turned upright, and so are its boxes
    **{
        f"EXIF {o}, of stored pixels": case(boxed(f"exif{o}.jpg", *BOX), right=True, of=shows_red, **STORED)
        for o in UPRIGHT
    },
    **{
        f"EXIF {o}, of the upright picture": case(
            boxed(f"exif{o}.jpg", *UPRIGHT[o]), right=True, of=shows_red, reading={"box_exif": "upright"}
        )
        for o in UPRIGHT
    },
    "EXIF 6, the row has the stored size": case(
        boxed("exif6.jpg", *BOX, width=100, height=60), right=[[40, 35, 55, 58]], of=boxes
    ),
    "EXIF 6, the row has the upright size": case(
        boxed("exif6.jpg", 40, 35, 55, 58, width=60, height=100), right=[[40, 35, 55, 58]], of=boxes
    ),
    "EXIF 6, in shares": case(
        boxed("exif6.jpg", 0.35, 5 / 60, 0.58, 20 / 60),
        right=[[40, 35, 55, 58]],
        of=boxes,
        reading={"box_space": "unit", "box_exif": "stored"},
    ),
    "EXIF 6, and nothing says of which": case(boxed("exif6.jpg", *BOX), right=EXIF),
    "EXIF 3, whose sizes are one": case(boxed("exif3.jpg", *BOX, width=100, height=60), right=EXIF),
    "no EXIF": case(boxed("exif1.jpg", *BOX), right=[list(BOX)], of=boxes),
    "another size than the row's": case(boxed("square.png", 1, 1, 9, 9, width=400, height=400), right=SIZE),
    **{
        f"another size than the row's, {kind}": case(row, right=SIZE, kind=kind)
        for kind, row in {
            "llava": located("exif1.jpg", width=1000, height=800),
            "webdataset": {"json": {**boxed("", *BOX), "width": 1000, "height": 800}, "1.jpg": "exif1.jpg"},
            "codevision_rl": verl("exif1.jpg", width=1000, height=800),
        }.items()
    },
    **{
        f"EXIF 6, {kind} has the stored size": case(row, right=[[40, 35, 55, 58]], of=boxes, kind=kind)
        for kind, row in {
            "llava": located("exif6.jpg", width=100, height=60),
            "webdataset": {"json": {**boxed("", *BOX), "width": 100, "height": 60}, "1.jpg": "exif6.jpg"},
            "codevision_rl": verl("exif6.jpg", width=100, height=60),
        }.items()
    },
    "EXIF 6, llava has the upright size": case(
        located("exif6.jpg", width=60, height=100, target_instances=[{"name": "red", "bbox": [40, 35, 15, 23]}]),
        right=[[40, 35, 55, 58]],
        of=boxes,
        kind="llava",
    ),
    "EXIF 6, and llava does not say of which": case(located("exif6.jpg"), right=EXIF, kind="llava"),
    "llava's width is no size": case(
        located("exif1.jpg", width=1000, height=800),
        right=[list(BOX)],
        of=boxes,
        kind="llava",
        columns={"width": [], "height": []},
    ),
    # 24: a resize keeps the shape
    "height before width": case(boxed("wide.png", 50, 50, 150, 100, size=[300, 500]), right=SHAPE, **SIZES),
    "width before height": case(
        boxed("wide.png", 50, 50, 150, 100, size=[500, 300]), right=[[100, 100, 300, 200]], of=boxes, **SIZES
    ),
    "rounded to 28": case(
        boxed("wide.png", 0, 0, 252, 154, size=[504, 308]), right=[[0, 0, 500, 300]], of=boxes, **SIZES
    ),
    "another picture's": case(boxed("wide.png", 1, 1, 9, 9, size=[640, 640]), right=SHAPE, **SIZES),
    # 25: a box says of which picture it is
    "a box, several pictures": case(
        boxed("", 1, 1, 9, 9) | {"image": None, "images": ["square.png", "wide.png"]}, right=SEVERAL
    ),
    "a box of the first": case(
        several(0),
        right=[[1, 1, 9, 9]],
        of=boxes,
    ),
    "boxes of the first by a convention": case(
        boxed("", 1, 1, 9, 9) | {"image": None, "images": ["square.png", "wide.png"]},
        right=[[1, 1, 9, 9]],
        of=boxes,
        reading={"boxes_of": "first"},
    ),
    "a box of the second": case(
        several(1),
        right="a box of another image than the first",
    ),
    "no box, several pictures": case({"image": None, "images": ["square.png", "wide.png"]}, right="a box"),
    # 26: one convention for a set
    "an index that is a text": case(
        options("2", "1", "2", "3", "4"), options("2", "krill", "fish", "whale"), right=MAYBE, **KEY
    ),
    "an index that is not text": case(options("2", "krill", "fish", "whale"), right=NONE, **KEY),
    "texts of a set of numbers": case(options("2", "1", "2", "3", "4"), options("7", "5", "6", "7"), right="B", **KEY),
    "an index by the key": case(options("2", "1", "2", "3", "4"), right="C", **INDEX),
    "a number as an index": case(options(0, "1", "2"), right="A", **INDEX),
    "an index beyond": case(options(4, "1", "2"), right=NONE, **INDEX),
    "a text by the key": case(
        options("2", "1", "2", "3"),
        options("2", "a", "b", "c"),
        right="B",
        **TEXT,
    ),
    "a letter by the key": case(options("B", "x", "y"), right="B", **LETTER),
    "an index, and no options": case(options("2"), right=ABSENT, **INDEX),
    "an index, and options of null": case({"answer": "1", "options": [None, None]}, right=ABSENT, **INDEX),
    "an index in a set of them, and no options": case(
        options("2"), options("2", "krill", "fish", "whale"), right=ABSENT, **KEY
    ),
    "a letter, and no options": case(options("(B)"), right=ABSENT, **LETTER),
    "a text, and no options": case(options("red"), right="red", **INDEX),
    "a number, and no options": case(options("2"), right="2", **TEXT),
    "an open question among texts": case(options("2"), options("red", "red", "blue"), right="2", **KEY),
    "an index of an empty option": case(options("1", "red", "", "blue"), right="an empty option", **INDEX),
    "an index beside an empty option": case(options("2", "red", "", "blue"), right="C", **INDEX),
    "options in the picture": case(options("2", "", "", ""), right="C", **INDEX),
    "an index of one of two equal options": case(options("1", "red", "red", "blue"), right="B", **INDEX),
    "an index beside two equal options": case(options("2", "red", "red", "blue"), right="C", **INDEX),
    "a letter of one of two equal options": case(options("B", "red", "red", "blue"), right="B", **KEY),
    "a text of two equal options": case(
        options("red", "red", "red ", "blue"), right="an answer that is several options", **KEY
    ),
    "a number of two equal options": case(
        options("2", "1", "2", "2"), right="an answer that is several options", **KEY
    ),
    "a text beside two equal options": case(options("blue", "red", "red", "blue"), right="C", **KEY),
    # 27: an answer is right under its own rule
    **{
        f"{answer} under {rule}": case({"answer": answer, "rule": rule}, right=right, of=pays(*replies))
        for rule, answer, replies, right in (
            ("integer", "five", ("five", "5", "6"), [1, 1, 0]),
            ("integer", "1,200", ("1200", "1,200", "1", "200"), [1, 1, 0, 0]),
            ("vsi", "2.5 m", ("2.5", "2.5 meters", "25"), [1, 1, 0]),
            ("yes_no", "No", ("no", "No.", "yes"), [1, 1, 0]),
            ("true_false", "true", ("True", "false"), [1, 0]),
            ("letter_set", "A, C", ("C, A", "A", "A, B, C"), [1, 0, 0]),
            ("mmmu", "3.5", ("3.5", "35"), [1, 0]),
            ("vlmblind", "4", ("4", "four", "5"), [1, 1, 0]),
        )
    },
    **{
        f"{answer} is dead under {rule}": case({"answer": answer, "rule": rule}, right=DEAD)
        for rule, answers in {
            "yes_no": ("True", "perhaps", "1"),
            "true_false": ("No", "yes", "1"),
            "integer": ("True", "3:00", "(1, 2)"),
            "vsi": ("many", "red"),
            "letter_set": ("red", "five"),
            "pope": ("True", "maybe"),
        }.items()
        for answer in answers
    },
    "an integer in words": case({"answer": "many", "rule": "integer"}, right=DEAD),
    "yes for true": case({"answer": "perhaps", "rule": "yes_no"}, right=DEAD),
    "an integer": case({"answer": "5", "rule": "integer"}, right="5"),
    "exact": case({"answer": "red", "rule": "exact"}, right="red"),
    # 28: answers by the id of their call
    "answers in another order": case(
        called(("b", "width"), ("a", "height")), right="height\nwidth", of=observation, kind="openai"
    ),
    "answers in order": case(
        called(("a", "height"), ("b", "width")), right="height\nwidth", of=observation, kind="openai"
    ),
    "pictures of answers in another order": case(
        called(("b", "<image>width"), ("a", "<image>height")) | {"pictures": ["green50.png", "green90.png"]},
        right=[255, 90, 50],
        of=shades,
        kind="openai",
        columns={"images": "pictures"},
    ),
    "two answers to one call": case(called(("a", "h"), ("a", "w")), right="unreadable messages", kind="openai"),
    "a call without its answer": case(called(("a", "h")), right="unreadable messages", kind="openai"),
    "an answer to no call": case(called(("c", "width"), ("a", "height")), right="unreadable messages", kind="openai"),
    # 29: the question that shows the picture
    "a greeting first": case(asked(*GREETED, *ASKED), right=("What is red?", "a box"), of=pair, kind="llava"),
    "the picture first": case(
        asked(("human", "<image>\nWho?"), ("gpt", "Ann"), *GREETED), right=("Who?", "Ann"), of=pair, kind="llava"
    ),
    "a picture in every turn": case(
        asked(("human", "<image>one?"), ("gpt", "a"), ("human", "<image>two?"), ("gpt", "b"))
        | {"image": ["wide.png", "square.png"]},
        right=("one?", "a", [1000]),
        of=lambda item: (*pair(item), [pixels.shape[1] for pixels in item.pictures]),
        kind="llava",
    ),
    "one marker for two pictures": case(
        asked(("human", "<image>one?"), ("gpt", "a"), ("human", "two?"), ("gpt", "b"))
        | {"image": ["wide.png", "square.png"]},
        right=("one?", "a", [1000, 40]),
        of=lambda item: (*pair(item), [pixels.shape[1] for pixels in item.pictures]),
        kind="llava",
    ),
    "no marker at all": case(asked(*GREETED), right=("Hello, can you help me?", "Of course."), of=pair, kind="llava"),
}


def pictures(folder: Path) -> None:
    for name, size, red in (("square.png", (40, 40), None), ("wide.png", (1000, 600), None)):
        Image.new("RGB", size, (255, 255, 255) if red is None else red).save(folder / name)
    for shade in (50, 90):
        Image.new("RGB", (40, 40), (0, shade, 0)).save(folder / f"green{shade}.png")
    stored = np.full((60, 100, 3), 255, np.uint8)
    stored[BOX[1] : BOX[3], BOX[0] : BOX[2]] = (255, 0, 0)
    for orientation in UPRIGHT:
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(stored).save(folder / f"exif{orientation}.jpg", quality=95, subsampling=0, exif=exif)


def test_rows_are_taken_rightly_or_refused_with_the_reason(tmp_path: Path) -> None:
    pictures(tmp_path)
    wrong: dict[str, Any] = {}
    for number, (name, each) in enumerate(CASES.items()):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in each.rows))
        split = "demo-train" if each.kind == "openai" else "train"
        how: Any = {"row": each.kind, "columns": each.columns, "reading": each.reading}
        try:
            found = each.of(generate(0, 0, split, path=str(path), name="own", **how))
        except RowProblem as problem:
            found = problem.reason
        if found != each.right:
            wrong[name] = found
    assert not wrong
