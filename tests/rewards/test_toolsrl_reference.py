"""An independent, slow ToolsRL reward on whole trajectories, compared with the measured and rewarded ones.

It shares no code with the package beyond making the trajectories: every image carries, for each of its pixels, the
pixel of image 0 that it shows, and for each of its corners that corner's coordinates in image 0. Boxes are sets of
pixels, orientations are compared as pictures, and matchings are tried one by one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re

import numpy as np
import pytest
from fakes import make_sample, make_trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcli.rewards import toolsrl
from vtcli.signals import answer, boxes, measure_all, orientation, primitives, usage
from vtcli.signals import format as format_signal
from vtcli.store.images import ImageStore

SIGNALS = (
    answer.measure,
    boxes.measure,
    format_signal.measure,
    orientation.measure,
    primitives.measure,
    usage.measure,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Views have the size of the original."""
    return ImageStore(tmp_path_factory.mktemp("images"))


# The reference


class World:
    """Per image: the source pixel of each pixel, the source corner of each corner, and what was drawn on it."""

    def __init__(self, width, height, picture):
        self.size = (width, height)
        sources = np.arange(width * height).reshape(height, width)
        corners = np.stack(np.meshgrid(np.arange(width + 1), np.arange(height + 1)), axis=-1).astype(float)
        self.images = [(sources, corners, [], None, picture)]

    def call(self, name, arguments):
        """Make the image of one valid call."""
        sources, corners, marks, _, picture = self.images[arguments.get("image_index", len(self.images) - 1)]
        box, marks = None, list(marks)

        def everywhere(operation):
            return operation(sources), operation(corners), operation(picture)

        if name == "image_rotate_tool":
            turns = arguments["angle"] // 90
            sources, corners, picture = everywhere(lambda a: np.rot90(a, -turns, axes=(0, 1)))
        elif name == "image_flip_tool":
            axis = 1 if arguments["direction"] == "horizontal" else 0
            sources, corners, picture = everywhere(lambda a: np.flip(a, axis))
        elif name == "image_zoom_in_tool":
            x1, y1, x2, y2 = arguments["bbox_2d"]
            sources, corners = sources[y1:y2, x1:x2], corners[y1 : y2 + 1, x1 : x2 + 1]
            box = set(sources.ravel().tolist())
        elif name == "image_mark_points_tool":
            marks += [("point", *corners[y, x]) for x, y in arguments["point_2d"]]
        elif name == "image_draw_horizontal_line_tool":
            marks.append(line_through(corners[arguments["y_position"], :]))
        else:
            marks.append(line_through(corners[:, arguments["x_position"]]))
        self.images.append((sources, corners, marks, box, picture))


def line_through(corners):
    """The kind and coordinate of the line of image 0 that runs through these corners."""
    xs, ys = set(corners[:, 0]), set(corners[:, 1])
    return ("vline", xs.pop()) if len(xs) == 1 else ("hline", ys.pop())


def reference_scores(world, truth, w_fp, w_fn, threshold=None):
    """R_task of every image."""
    width, height = world.size
    scores = []
    for _, _, marks, box, picture in world.images:
        if "transform" in truth:
            scores.append(1.0 if np.array_equal(picture, PAGE) else 0.0)
        elif "boxes" in truth:
            values = []
            for true in truth["boxes"]:
                x1, y1, x2, y2 = true["box"]
                wanted = {y * width + x for y in range(y1, y2) for x in range(x1, x2)}
                shown = box or set()
                tp, fp, fn = len(shown & wanted), len(shown - wanted), len(wanted - shown)
                values.append(2 * tp / (2 * tp + w_fp * fp + w_fn * fn) if tp else 0.0)
            scores.append(max(values) if threshold is None else 1.0 if max(values) >= threshold else 0.0)
        else:
            wanted = [tuple(true.values()) for true in truth["primitives"]]
            total = best_matching(marks, wanted, width, height)
            scores.append(2 * total / (len(marks) + len(wanted)) if marks else 0.0)
    return scores


def best_matching(marks, wanted, width, height):
    """The largest total similarity over all injections of the shorter list into the longer."""

    def similarity(mark, want):
        if mark[0] != want[0]:
            return 0.0
        if mark[0] == "point":
            distance = ((mark[1] - want[1]) ** 2 + (mark[2] - want[2]) ** 2) ** 0.5
            return max(0.0, 1 - distance / ((width / 4) ** 2 + (height / 4) ** 2) ** 0.5)
        return max(0.0, 1 - abs(mark[1] - want[1]) / ((width if mark[0] == "vline" else height) / 4))

    if len(marks) <= len(wanted):
        pairings = (zip(marks, order, strict=True) for order in itertools.permutations(wanted, len(marks)))
    else:
        pairings = (zip(order, wanted, strict=True) for order in itertools.permutations(marks, len(wanted)))
    return max(sum(similarity(mark, want) for mark, want in pairing) for pairing in pairings)


def reference_stage1(world, truth, final_text, w_fp, w_fn, threshold):
    """(R_global + R_answer-cond) / 2 + R_format, with the format weight 0.2."""
    scores = reference_scores(world, truth, w_fp, w_fn, threshold)
    found = re.fullmatch(r"<think>x</think><answer>(.*)</answer>", final_text)
    named = 0.0
    if found and re.fullmatch(r"\d+", found[1]):
        index = int(found[1])
        named = scores[index] if index < len(scores) else 0.0
        named /= max(1, len(truth.get("boxes", [])))
    elif found and "boxes" in truth and found[1]:
        indices = list(json.loads("{" + found[1] + "}").values())
        values = [scores[k] if k < len(scores) else 0.0 for k in indices]
        named = sum(values) / max(len(values), len(truth["boxes"]))
    return (max(scores) + named) / 2 + (0.0 if found else -0.2)


# Trajectories

PAGE = np.array([[1, 2, 3], [4, 5, 6]])  # no symmetry of the square leaves it as it is
TURNED = {
    "none": PAGE,
    "rot90": np.rot90(PAGE, -1),
    "rot180": np.rot90(PAGE, 2),
    "rot270": np.rot90(PAGE, 1),
    "hflip": PAGE[:, ::-1],
    "vflip": PAGE[::-1],
}


@st.composite
def truths(draw, width, height):
    kind = draw(st.sampled_from(["transform", "boxes", "primitives"]))
    if kind == "transform":
        return {"transform": draw(st.sampled_from(sorted(TURNED)))}
    if kind == "boxes":
        count = draw(st.integers(1, 3))
        return {"boxes": [{"label": f"l{k}", "box": draw(box_in(width, height))} for k in range(count)]}
    vline = st.integers(0, width).map(lambda x: {"type": "vline", "x": x})
    hline = st.integers(0, height).map(lambda y: {"type": "hline", "y": y})
    point = st.builds(lambda x, y: {"type": "point", "x": x, "y": y}, st.integers(0, width), st.integers(0, height))
    return {"primitives": draw(st.lists(vline | hline | point, min_size=1, max_size=3))}


@st.composite
def box_in(draw, width, height):
    x1, y1 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return [x1, y1, draw(st.integers(x1 + 1, width)), draw(st.integers(y1 + 1, height))]


@st.composite
def valid_call(draw, name, width, height):
    if name == "image_zoom_in_tool":
        return {"bbox_2d": draw(box_in(width, height))}
    if name == "image_rotate_tool":
        return {"angle": draw(st.sampled_from([90, 180, 270]))}
    if name == "image_flip_tool":
        return {"direction": draw(st.sampled_from(["horizontal", "vertical"]))}
    if name == "image_mark_points_tool":
        one = st.tuples(st.integers(0, width), st.integers(0, height)).map(list)
        return {"point_2d": draw(st.lists(one, min_size=1, max_size=2))}
    axis, limit = ("y", height) if "horizontal" in name else ("x", width)
    return {f"{axis}_position": draw(st.integers(0, limit))}


@st.composite
def cases(draw):
    """An image's size, a truth, calls that are all valid, and a last turn."""
    width, height = draw(st.integers(4, 24)), draw(st.integers(4, 24))
    truth = draw(truths(width, height))
    kinds = {
        "transform": ["rotate", "flip", "zoom_in"],
        "boxes": ["zoom_in", "zoom_in", "rotate"],
        "primitives": ["mark_points", "draw_horizontal_line", "draw_vertical_line", "rotate", "zoom_in"],
    }[next(iter(truth))]
    world = World(width, height, TURNED[truth.get("transform", "none")])
    calls = []
    for _ in range(draw(st.integers(0, 5))):
        index = draw(st.integers(0, len(world.images) - 1))
        rows, columns = world.images[index][0].shape
        name = f"image_{draw(st.sampled_from(kinds))}_tool"
        arguments = draw(valid_call(name, columns, rows))
        if index != len(world.images) - 1 or draw(st.booleans()):
            arguments["image_index"] = index
        world.call(name, arguments)
        calls.append((name, arguments))
    k = st.integers(0, len(world.images))
    zoom_answer = st.lists(k, min_size=1, max_size=3).map(
        lambda ks: ", ".join(f'"l{i}": {v}' for i, v in enumerate(ks))
    )
    text = draw(k.map(str) | zoom_answer | st.just(""))
    final = f"<think>x</think><answer>{text}</answer>" if draw(st.booleans()) or text else "nothing"
    return world, truth, calls, final


@settings(max_examples=120)
@given(cases(), st.sampled_from([(0.1, 1.0, 0.5), (0.1, 1.0, None), (1.0, 1.0, 0.5), (0.0, 0.5, None)]))
def test_stage_1_equals_the_slow_reference(store, case, weights):
    world, truth, calls, final = case
    width, height = world.size
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    sample = make_sample(store, pixels=pixels, form="tool", task=next(iter(truth)), truth=truth)
    trajectory = make_trajectory(sample, [*calls, final], store)
    assert len(trajectory.images) == len(world.images)  # every call was carried out
    measured = asyncio.run(measure_all(trajectory, SIGNALS))
    keys = dict(zip(("w_fp", "w_fn", "zoom_threshold"), weights, strict=True))
    (verdict,) = toolsrl.stage1([measured], **keys)
    assert verdict is not None
    assert verdict.total == pytest.approx(reference_stage1(world, truth, final, *weights), abs=1e-9)
    stored = type(measured)(json.loads(json.dumps(measured.values)))  # scored again from disk: the same
    assert toolsrl.stage1([stored], **keys) == [verdict]
