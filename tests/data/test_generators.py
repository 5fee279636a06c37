"""Every generator: pure in (seed, split, item), truth that the pixels confirm, answers near uniform."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from cases import each_case
from sizes import default_size

from vtcli.config.binding import bind
from vtcli.data.generators import canvas, chart, search, turned, zoom
from vtcli.data.generators.count import CONDITIONS
from vtcli.data.generators.item import Item, stream
from vtcli.data.generators.rotflip import CORNERS, INVERSE, TRANSFORMS, UNDO, moved
from vtcli.data.generators.zoom import PALE
from vtcli.data.teachers.scripted import Teacher
from vtcli.errors import ConfigError
from vtcli.signals.code import required
from vtcli.signals.rules import rule_of, score
from vtcli.store.images import resize

TASKS = ("rotflip", "zoom", "read_value", "count")
CONF = Path(__file__).parents[2] / "conf" / "data"


def generators(name: str) -> dict[str, Any]:
    tasks = yaml.safe_load((CONF / f"{name}.yaml").read_text())["tasks"]
    return {task: bind(node["generate"], task) for task, node in tasks.items()}


TINY, PAPER = generators("toolsrl_tiny"), generators("toolsrl_paper")
TASKS = tuple(TINY)  # ToolsRL's


def items(task: str, count: int, split: str = "train", form: str = "answer", size: dict[str, Any] = TINY) -> list[Item]:
    return [size[task](seed=0, item=i, split=split, form=form) for i in range(count)]


def near(pixels: np.ndarray, colour: canvas.Rgb, tolerance: int = 40) -> np.ndarray:
    return (np.abs(pixels.astype(int) - np.array(colour)) <= tolerance).all(axis=2)


def centroid(mask: np.ndarray) -> tuple[float, float]:
    """In continuous coordinates: pixel (i, j) covers [i, i + 1) x [j, j + 1)."""
    rows, columns = np.nonzero(mask)
    return float(columns.mean()) + 0.5, float(rows.mean()) + 0.5


@each_case("size", [TINY, PAPER], ids=["tiny", "paper"])
@each_case("task", TASKS)
def test_an_item_is_json_and_has_a_picture(task: str, size: dict[str, Any]) -> None:
    for item in items(task, 4, size=size):
        assert item.pixels.dtype == np.uint8 and item.pixels.shape[2] == 3 and item.pixels.flags.c_contiguous
        assert json.loads(json.dumps(item.truth)) == item.truth  # plain Python values, no numpy scalars or tuples
        assert item.answer and item.tool_answer and "<|" not in item.question + item.tool_question
        assert canvas.png(item.pixels) == canvas.png(item.pixels)


@each_case("name", [p.stem for p in sorted(CONF.glob("*_tiny.yaml")) if "\ntasks:" in p.read_text()])
def test_every_item_names_the_rule_of_its_answer(name: str) -> None:
    """It is the rule that rows without one, as older versions stored them, have by what their truth holds."""
    for make in generators(name).values():
        for item in (make(seed=0, item=i, split="train", form="answer") for i in range(6)):
            sample = item.sample("answer", "train")
            assert item.truth["rule"] == rule_of(sample)
            older = {key: value for key, value in item.truth.items() if key != "rule"}
            assert rule_of(replace(sample, truth=older)) == item.truth["rule"]
            assert score(sample, item.answer) == (1.0, 1)


@each_case("task", TASKS)
def test_items_depend_on_seed_split_and_number_only(task: str) -> None:
    make = TINY[task]
    first = make(seed=3, item=7, split="train")
    make(seed=9, item=1, split="test")  # whatever was made in between
    again = make(seed=3, item=7, split="train")
    assert again.digest == first.digest and again.truth == first.truth
    others = [
        make(seed=4, item=7, split="train"),
        make(seed=3, item=8, split="train"),
        make(seed=3, item=7, split="test"),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 4


def test_another_process_makes_the_same_pixels() -> None:
    code = (
        "from typing import get_type_hints\n"
        "from vtcli.data.generators import rotflip, zoom, read_value, count\n"
        "modules = (rotflip, zoom, read_value, count)\n"
        "print([m.generate(5, 2, 'test', get_type_hints(m.generate)['size']()).digest for m in modules])"
    )
    from vtcli.data.generators import count, read_value, rotflip, zoom

    here = [m.generate(5, 2, "test", default_size(m.generate)).digest for m in (rotflip, zoom, read_value, count)]
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(here)


@each_case("task", TASKS)
def test_splits_share_no_picture(task: str) -> None:
    count = 40 if task == "zoom" else 150
    seen = [item.digest for split in ("train", "validation", "test") for item in items(task, count, split)]
    assert len(set(seen)) == len(seen)


def test_the_first_tasks_keep_their_numbers_and_a_new_one_draws_from_its_name() -> None:
    """Their data would be others if these changed; ``mine`` shares no stream with them."""
    draws = {task: stream(0, task, "train", 0).integers(1000, size=4).tolist() for task in ("zoom", "count", "mine")}
    assert draws == {"zoom": [116, 607, 527, 503], "count": [292, 948, 63, 194], "mine": [611, 991, 546, 44]}
    assert stream(0, "dots", "demo-train", 3, purpose=1).integers(1000, size=4).tolist() == [41, 363, 358, 466]


def test_unknown_splits_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a task"):
        stream(0, "zoom", "holdout", 0)


# ---------------------------------------------------------------- rotate and flip


def test_seven_tenths_of_the_pages_are_transformed_uniformly() -> None:
    found = Counter(item.truth["transform"] for item in items("rotflip", 1000))
    assert abs(found["none"] / 1000 - 0.3) < 0.05  # 3.5 standard errors of 0.0145
    assert all(abs(found[name] / 1000 - 0.14) < 0.04 for name in TRANSFORMS if name != "none")


def test_the_tool_training_set_is_always_transformed_and_shows_the_same_pages() -> None:
    tool, plain = items("rotflip", 200, form="tool"), items("rotflip", 200)
    assert all(item.truth["transform"] != "none" for item in tool)
    for a, b in zip(tool, plain, strict=True):
        assert a.truth["corner"] == b.truth["corner"]
        if b.truth["transform"] != "none":
            assert a.digest == b.digest
    assert any(item.truth["transform"] == "none" for item in items("rotflip", 50, "test", "tool"))


@each_case("size", [TINY, PAPER], ids=["tiny", "paper"])
def test_the_stamp_is_in_its_corner_once_the_page_is_upright(size: dict[str, Any]) -> None:
    for item in items("rotflip", 40 if size is TINY else 6, size=size):
        transform = item.truth["transform"]
        upright = TRANSFORMS[INVERSE.get(transform, transform)](item.pixels)
        height, width = upright.shape[:2]
        x, y = centroid(near(upright, canvas.COLOURS[item.truth["colour"]], 12))
        corner = f"{'top' if y < height / 2 else 'bottom'}-{'left' if x < width / 2 else 'right'}"
        assert corner == item.truth["corner"]
        # the title bar is dark, at the top, and ends before the right margin
        dark = upright.max(axis=2) < 80
        assert dark[: height // 5].sum() > 2 * dark[-height // 5 :].sum()
        if item.truth["kind"] == "corner":
            assert item.answer == corner


def test_every_transform_moves_every_corner() -> None:
    for name in UNDO:
        for corner in CORNERS:
            assert (moved(corner, name) == corner) == (name == "none")
    assert moved("top-left", "rot90") == "top-right"  # clockwise
    assert moved("top-left", "rot270") == "bottom-left"


def test_corners_are_uniform_and_say_nothing_where_seen() -> None:
    pages = items("rotflip", 1000)
    answers = Counter(item.answer for item in pages)
    assert all(abs(answers[corner] / 1000 - 0.25) < 0.06 for corner in CORNERS)
    # reading the corner off the page as it is shown is right for untransformed pages only: 0.3, chance is 0.25
    seen = sum(moved(item.truth["corner"], item.truth["transform"]) == item.answer for item in pages)
    assert seen == sum(item.truth["transform"] == "none" for item in pages)


# ---------------------------------------------------------------- zoom


def tag_colour(label: str) -> canvas.Rgb:
    """A tag's mean colour: its name's, mixed with grey."""
    red, green, blue = (round(PALE * v + (1 - PALE) * 128) for v in canvas.COLOURS[label.split(maxsplit=1)[0]])
    return red, green, blue


@each_case("size", [TINY, PAPER], ids=["tiny", "paper"])
def test_tags_are_where_the_truth_says(size: dict[str, Any]) -> None:
    hatched = bool(size["zoom"].keywords["size"].hatchings)
    dark = {"zoom": partial(zoom.generate, size=replace(size["zoom"].keywords["size"], lighting=0.0))}
    for item in items("zoom", 12 if size is TINY else 3, size=dark):
        pixels = item.pixels
        for tag in item.truth["tags"]:
            x1, y1, x2, y2 = tag["box"]
            colour = tag_colour(tag["label"])
            face = cv2.blur(pixels[y1:y2, x1:x2], (12, 12)) if hatched else pixels[y1:y2, x1:x2]
            assert near(face, colour).mean() > 0.9  # all but the letter; lines cancel over whole periods
            border = np.concatenate([pixels[y1 - 2 : y1 - 1, x1:x2], pixels[y2 + 1 : y2 + 2, x1:x2]])
            assert near(border, colour, 14).mean() < 0.5
            if hatched:
                assert direction(pixels[y1:y2, x1:x2]) == tag["mark"]
            else:
                letter = pixels[y1:y2, x1:x2].sum(axis=2) < sum(colour) - 150
                assert 3 <= np.ptp(np.nonzero(letter)[0]) + 1 <= 21  # pixels tall
        asked = {box["label"]: box["box"] for box in item.truth["boxes"]}
        marks = {tag["label"]: tag["mark"] for tag in item.truth["tags"]}
        assert item.answer == ", ".join(marks[label] for label in asked)
        assert item.tool_answer == ", ".join(f'"{label}": {k}' for k, label in enumerate(asked, 1))
        assert all(label in item.question and label in item.tool_question for label in asked)
        if not hatched:  # ToolsRL 3.3.1, quoted: the question is shown, and the model names its elements
            assert item.tool_question == (
                f"The sentence is: “{item.question}”. First, identify the visual elements (objects or text) referenced "
                "in the sentence. Then, use zoom-in to locate each element in the image and report which zoom call "
                "finds it (index starts from 1). Example: if “bike” is found on the 3rd image and “person” on the "
                '8th, answer: <answer>"bike": 3, "person": 8</answer>'
            )


def direction(face: np.ndarray) -> str:
    """Of the lines on a tag, from the strongest wave of its spectrum; rows run downwards, so x + y is constant on a
    rising line."""
    grey = face.sum(axis=2) - face.sum(axis=2).mean()
    strength = np.abs(np.fft.fft2(grey))
    down, right = (np.fft.fftfreq(n) for n in grey.shape)
    strength[np.hypot(down[:, None], right[None, :]) < 0.15] = 0  # blotches and light
    i, j = np.unravel_index(int(strength.argmax()), strength.shape)
    angle = np.degrees(np.arctan2(down[i], right[j])) % 180
    return ("down", "rising", "across", "falling")[round(angle / 45) % 4]


def test_the_view_shows_nothing_of_a_hatching(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all lines turned by a right angle or half of one, a scene looks the same at the size that the model sees: a
    line is 60 levels darker or brighter than its tag, and what is left of that in the view is near one level."""
    views = [resize(item.pixels, 112, 112).astype(int) for item in items("zoom", 8)]
    for turn in (45, 90):
        with monkeypatch.context() as patch:
            patch.setattr(zoom, "_NORMALS", {name: angle + turn for name, angle in zoom._NORMALS.items()})
            turned = items("zoom", 8)
        for view, item in zip(views, turned, strict=True):
            difference = np.abs(view - resize(item.pixels, 112, 112))
            for tag in item.truth["tags"]:
                x1, y1, x2, y2 = (round(v / 6) for v in tag["box"])
                assert difference[y1:y2, x1:x2].mean() < 2 and difference.max() <= 10
                pixels = item.pixels[slice(*tag["box"][1::2]), slice(*tag["box"][::2])]
                assert direction(pixels) != tag["mark"]  # the full image shows them


def test_frames_give_lines_away_in_the_view_and_where_there_is_none_nothing_does() -> None:
    """What CodeV's miniature rests on: in its share of the scenes the answer can be read without a close-up, in the
    rest it cannot, and the close-up shows the lines in all."""
    size = generators("codev_tiny")["zoom"]
    scenes = [size(0, i, "train") for i in range(120)]
    guessed: list[bool] = []  # of those without a frame
    for item in scenes:
        (tag,) = item.truth["tags"]
        x1, y1, x2, y2 = tag["box"]
        assert direction(item.pixels[y1 + 12 : y2 - 12, x1 + 12 : x2 - 12]) == item.answer
        view = resize(item.pixels, 112, 112)
        row = math.ceil(y1 / 6)  # of the view, which lies within the frame's upper edge
        seen = np.median(view[row, round(x1 / 6) + 2 : round(x2 / 6) - 2, 1])  # green
        nearest = min(zoom.FRAMES, key=lambda mark: abs(zoom.FRAMES[mark][1] - float(seen)))
        if item.truth["framed"]:
            assert nearest == item.answer
        else:
            guessed.append(nearest == item.answer)
    assert np.mean(guessed) < 0.5  # 0.25 expected of 36
    assert np.mean([item.truth["framed"] for item in scenes]) == pytest.approx(0.7, abs=0.1)
    bare = [item for item in scenes if not item.truth["framed"]]
    assert {item.answer for item in bare} == set(scenes[0].truth["choices"]) and len(bare) > 20


def test_frames_are_refused_for_letters() -> None:
    with pytest.raises(ConfigError, match=r"framed=0\.5 needs hatchings, of across, down"):
        zoom.ZoomSize(framed=0.5)


def test_marks_are_uniform_and_png_files_small() -> None:
    scenes = items("zoom", 160)
    answers = Counter(item.answer for item in scenes)
    assert set(answers) == set(scenes[0].truth["choices"]) and len(answers) == 4
    assert max(answers.values()) < 160 * 0.36  # 0.25 expected
    assert np.mean([len(canvas.png(item.pixels)) for item in scenes[:20]]) < 90_000  # tinted by place: 75 kB


# ---------------------------------------------------------------- charts


@each_case("size", [TINY, PAPER], ids=["tiny", "paper"])
@each_case("task", ["read_value", "count"])
def test_points_are_drawn_where_the_truth_says(task: str, size: dict[str, Any]) -> None:
    for item in items(task, 25, size=size):
        x1, y1, x2, y2 = item.truth["frame"]
        for point in item.truth["points"]:
            (px, py), (x, y) = point["pixel"], point["data"]
            (x_low, x_high), (y_low, y_high) = item.truth["range"]["x"], item.truth["range"]["y"]
            assert px == pytest.approx(x1 + (x - x_low) / (x_high - x_low) * (x2 - x1))
            assert py == pytest.approx(y2 - (y - y_low) / (y_high - y_low) * (y2 - y1))
            colourful = np.ptp(item.pixels[int(py) - 1 : int(py) + 2, int(px) - 1 : int(px) + 2].astype(int), axis=2)
            assert (colourful > 60).mean() > 0.5  # a marker, not the white ground or the grey axes


def test_markers_are_centred_on_their_points() -> None:
    for item in items("count", 30):
        for colour in ("blue", "red", "green"):
            mask = near(item.pixels, canvas.COLOURS[colour], 25)
            for point in item.truth["points"]:
                px, py = point["pixel"]
                window = np.zeros_like(mask)
                window[max(0, int(py) - 5) : int(py) + 6, max(0, int(px) - 5) : int(px) + 6] = True
                if (mask & window).sum() >= 30 and all(
                    np.hypot(px - q["pixel"][0], py - q["pixel"][1]) > 14 or q is point for q in item.truth["points"]
                ):
                    assert centroid(mask & window) == pytest.approx((px, py), abs=0.5)


@each_case("size", [TINY, PAPER], ids=["tiny", "paper"])
def test_read_value_answers_and_lines_belong_to_the_named_point(size: dict[str, Any]) -> None:
    asked: Counter[str] = Counter()
    for item in items("read_value", 60, size=size):
        (target,) = [p for p in item.truth["points"] if p["label"] == item.truth["target"]]
        axis = item.truth["axis"]
        asked[axis] += 1
        assert item.truth["value"] == [target["data"]["xy".index(a)] for a in axis]
        lines = {"x": {"type": "vline", "x": target["pixel"][0]}, "y": {"type": "hline", "y": target["pixel"][1]}}
        assert item.truth["primitives"] == [lines[a] for a in axis]
        assert [float(v) for v in item.answer.strip("()").split(", ")] == item.truth["value"]
        assert item.tool_answer == str(len(axis)) and f"point {target['label']}" in item.question
    assert set(asked) == ({"x", "y"} if size is TINY else {"x", "y", "xy"})


@each_case("size", [TINY, PAPER], ids=["tiny", "paper"])
def test_counts_follow_from_the_points(size: dict[str, Any]) -> None:
    for item in items("count", 60, size=size):
        points = item.truth["points"]
        (reference,) = [p for p in points if p["label"] is not None]  # only the reference is labelled
        assert reference["label"] == item.truth["reference"]

        def holds(point: Any, condition: Any, reference: Any = reference) -> bool:
            mine, other = (p["data"]["xy".index(condition["axis"])] for p in (point, reference))
            return mine > other if condition["op"] == ">" else mine < other

        rest = [p for p in points if p is not reference]
        found = [p for p in rest if all(holds(p, c) for c in item.truth["conditions"])]
        assert item.answer == str(len(found)) and item.truth["value"] == [len(found)]
        assert item.truth["total"] == len(points) == len(rest) + 1  # ToolsRL 3.3.2: the number of total points
        # Eq. 13: one too many of N points is 1 - 1/N, the reference counted
        assert score(item.sample("answer", "train"), str(len(found) + 1)) == (1 - 1 / len(points), 0)
        marks = [(p["x"], p["y"]) for p in item.truth["primitives"] if p["type"] == "point"]
        assert sorted(marks) == sorted(tuple(p["pixel"]) for p in found)
        lines = [p for p in item.truth["primitives"] if p["type"] != "point"]
        assert [line["type"] for line in lines] == [
            "vline" if c["axis"] == "x" else "hline" for c in item.truth["conditions"]
        ]
        assert all(line.get("x", line.get("y")) in reference["pixel"] for line in lines)
        # no ties: every other point is apart from the reference on both axes
        assert all(abs(p["pixel"][i] - reference["pixel"][i]) >= 4 for p in rest for i in (0, 1))


def test_paper_charts_have_the_papers_sizes_and_questions() -> None:
    charts = items("count", 150, size=PAPER)
    assert all(max(item.pixels.shape) <= 512 and 8 <= len(item.truth["points"]) <= 20 for item in charts)
    asked = {tuple((c["axis"], c["op"]) for c in item.truth["conditions"]) for item in charts}
    assert asked == set(CONDITIONS.values())
    labels = {item.truth["reference"] for item in charts}
    assert any(label.isdigit() for label in labels) and any(label.isalpha() for label in labels)
    assert any(len(label) == 2 and label[0].isalpha() and label[1].isdigit() for label in labels)
    assert all(max(item.pixels.shape) <= 768 for item in items("read_value", 40, size=PAPER))


def test_counts_and_values_are_near_uniform() -> None:
    counts = Counter(item.answer for item in items("count", 600))
    assert max(counts.values()) < 0.33 * 600  # over 0..5, small ones are possible on every chart
    values = Counter(item.answer for item in items("read_value", 1100))
    assert set(values) == {str(v) for v in range(0, 11, 2)} and max(values.values()) < 1100 / 6 * 1.4


SQUARE = zoom.ZoomSize(tags=1, hatchings=CORNERS, lattice=168)
LINES = ("across", "down", "rising", "falling")


@each_case(
    ("make", "said"),
    [
        (lambda: zoom.generate(0, 0, "train", zoom.ZoomSize(336, 336, 2, lattice=336)), "2 tags of 66 to 78 px do not"),
        (lambda: zoom.ZoomSize(width=80), "width: must be at least 95, got 80"),
        (lambda: zoom.ZoomSize(lattice=673), "lattice: must be at least 0 and at most 672, got 673"),
        (lambda: search.generate(0, 0, "train", zoom.ZoomSize(hatchings=LINES)), "lattice=0 has 0 x 0 cells"),
        (
            lambda: search.generate(0, 0, "train", zoom.ZoomSize(hatchings=LINES, lattice=336)),
            "lattice=336 has 2 x 2 cells in 672 x 672 px; expected 2 x 3 at least",
        ),
        (lambda: search.generate(0, 0, "train", zoom.ZoomSize(lattice=168)), r"hatchings=\[\]; expected across, down"),
        (lambda: turned.TurnedSize(replace(SQUARE, height=336)), "scene: must be square, got 672 x 336"),
        (lambda: turned.TurnedSize(zoom.ZoomSize(lattice=168)), "scene: hatchings must be some of top-left"),
        (lambda: turned.TurnedSize(replace(SQUARE, lattice=0)), r"scene\.lattice: must be at least 1, got 0"),
        (lambda: chart.ChartSize(steps=10, ticks=3), "ticks: must divide steps=10, or labels are not values; got 3"),
    ],
)
def test_sizes_that_cannot_be_drawn_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_more_points_than_places_is_a_mistake_in_the_configuration() -> None:
    assert sorted(chart.spaced(stream(0, "count", "train", 0), 3, 3, 2)) == [0, 1, 2]
    with pytest.raises(ConfigError, match="5 points do not fit on 4 places"):
        chart.spaced(stream(0, "count", "train", 0), 5, 4, 1)


def test_a_framed_scene_of_turned_needs_no_operation_and_its_answer_survives_all() -> None:
    """CodeVision's bonus for optional tools can be hacked there: no act costs the answer."""
    inner = zoom.ZoomSize(tags=1, hatchings=CORNERS, lattice=168, lighting=120, framed=0.5)
    found = [turned.generate(0, n, "train", turned.TurnedSize(scene=inner)) for n in range(40)]
    kinds = {item.truth["difficulty"] for item in found}
    assert kinds == {"given", "hidden"}
    rng, teacher = np.random.default_rng(0), Teacher(skill=0.5)
    for item in found:
        given = item.truth["difficulty"] == "given"
        assert (required(item.truth) == []) == given  # nothing | the turn, if any, and the crop
        assert item.question.startswith("Turn the scene upright.") != given  # what is asked for is not superfluous
        assert item.truth["transform"] == "none" or not given
        acts = [turned.act(item, rng, teacher, (1 / 6, 1 / 6)) for _ in range(8)]
        assert all(act.calls for act in acts)
        if given:
            assert {act.answer for act in acts} == {item.answer}
            x1, y1, _, y2 = map(int, item.truth["boxes"][0]["box"])
            rim = item.pixels[y1:y2, x1 + 5, 1].astype(int)  # of the frame; green is what the light leaves
            assert abs(int(np.median(rim)) - zoom.FRAMES[item.answer][1]) < 16
    plain = turned.generate(0, 0, "train", turned.TurnedSize())
    assert "difficulty" not in plain.truth and "required" not in plain.truth
