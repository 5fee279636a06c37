"""The host's test of claims, against claims that no recorder would make."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from harness_process import scene
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcli.sandbox.replay import redo as replay
from vtcli.sandbox.replay.arguments import Work
from vtcli.sandbox.replay.verify import LONGEST, checked, judged
from vtcli.sandbox.types import Operation, Picture, Produced

PICTURE = scene(64, 48)
numbers = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(-1e6, 1e6),
    st.sampled_from([0, 1, 2, 90, float("inf"), float("nan"), 10**18]),
)
words = st.sampled_from(
    [
        *(
            "horizontal",
            "vertical",
            "RGB",
            "L",
            "RGBA",
            "BGR2GRAY",
            "BGR2HSV",
            "swap",
            "channel",
            "red",
            "<unknown x>",
            "",
        ),
        *(
            "GaussianBlur",
            "blur",
            "medianBlur",
            "Canny",
            "contrast",
            "autocontrast",
            "line",
            "ellipse",
            "rectangle",
            "text",
        ),
        *("putText", "figure", "lossy", "unchanged", "affine", "perspective", "MedianFilter", "SHARPEN", "polygon"),
    ]
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words), lambda inner: st.lists(inner, max_size=6), max_leaves=12
)
names = st.sampled_from(
    [
        *("box", "degrees", "resample", "expand", "center", "translate", "fill", "axis", "size", "factor", "thumbnail"),
        *(
            "kind",
            "conversion",
            "index",
            "radius",
            "percent",
            "threshold",
            "cutoff",
            "every",
            "interpolation",
            "fx",
            "fy",
        ),
        *(
            "matrix",
            "flags",
            "border",
            "ksize",
            "sigmaX",
            "pt1",
            "pt2",
            "color",
            "thickness",
            "text",
            "org",
            "fontFace",
        ),
        *("fontScale", "xy", "width", "outline", "axes", "images", "method", "data", "alpha", "beta", "reducing_gap"),
    ]
)
operations = st.builds(
    Operation,
    st.sampled_from(
        ["rotate", "flip", "crop", "resize", "enhance", "draw", "warp", "colour", "filter", "frames", "other"]
    ),
    st.dictionaries(names, values, max_size=6),
    st.sampled_from(["pil", "numpy", "cv2", "matplotlib", "video"]),
    st.just(0),
    st.none(),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(operations, min_size=1, max_size=4))
def test_no_claim_makes_the_host_fail_or_stall(chain: list[Operation]) -> None:
    started = time.monotonic()
    verdict, found = judged((PICTURE,), chain, PICTURE)
    assert verdict in (True, False, None)
    assert len(found) == len(chain)
    assert time.monotonic() - started < 10


def operation(name: str, library: str = "pil", image: int | None = 0, **arguments: Any) -> Operation:
    return Operation(name, arguments, library, image)


@pytest.mark.parametrize(
    "chain",
    [
        [],
        [operation("crop", box=[0, 0, 64, 48], image=None)],
        [operation("crop", box=[0, 0, 64, 48], image=2)],
        [operation("crop", box=[0, 0, 64, 48]), operation("crop", box=[0, 0, 64, 48], image=1)],
        [operation("crop", box=[0, 0, 64, 48])] * (LONGEST + 1),
        [operation("resize", size=[30000, 30000])],
        [operation("resize", size=[5000, 5000], resample=1), operation("resize", size=[64, 48], resample=1)] * 8,
        [operation("crop", box=[0, 0, float("nan"), 48])],
        [operation("draw", kind="regular_polygon")],
        [operation("colour", "cv2", conversion="__class__")],
        [operation("frames", "video", indices=[0])],
        [operation("filter", kind="GaussianBlur", radius=10**9)],
        [operation("enhance", inexact=True, kind="contrast", factor=1.0)],
    ],
)
def test_what_cannot_be_told_is_not_told(chain: list[Operation]) -> None:
    assert judged((PICTURE, PICTURE[:9]), chain, PICTURE)[0] is None


def test_golden_verdicts() -> None:
    cut = Produced(PICTURE[10:30, 5:45].copy(), "show", operations=(operation("crop", box=[5, 10, 45, 30]),))
    found = checked([Picture(PICTURE)], cut)
    assert found.verified is True
    assert found.operations[0].box == (5, 10, 45, 30)
    moved = Produced(cut.pixels, "show", operations=(operation("crop", box=[6, 10, 46, 30]),))
    assert checked([Picture(PICTURE)], moved).verified is False


def test_a_box_is_the_hosts_own_after_turn_flip_crop_and_zoom() -> None:
    # 64 x 48 turned clockwise is 48 x 64: its left upper corner was the left lower one. Mirrored, it was the upper left
    # one with x and y exchanged: (x, y) shows (y, x). So (4, 8)-(24, 40) shows x 8..40, y 4..24.
    chain = [
        operation("rotate", "numpy", degrees=90),
        operation("flip", "numpy", axis="horizontal"),
        operation("crop", "numpy", box=[4, 8, 24, 40]),
        operation("resize", "cv2", size=[40, 64], interpolation=0),
    ]
    state = PICTURE
    for step in chain:
        state = replay.redone(state, step, Work()).state
    verdict, found = judged((PICTURE,), chain, np.ascontiguousarray(state))
    assert verdict is True
    assert found[-1].box == (8, 4, 40, 24)


def test_a_lossy_copy_passes_and_a_different_one_does_not() -> None:
    chain = [operation("crop", box=[0, 0, 64, 48]), operation("other", kind="lossy", format="jpg")]
    near = np.clip(PICTURE.astype(int) + np.random.default_rng(0).integers(-8, 9, PICTURE.shape), 0, 255)
    assert judged((PICTURE,), chain, near.astype(np.uint8))[0] is True
    assert judged((PICTURE,), chain, 255 - PICTURE)[0] is False


@pytest.mark.parametrize("levels", [1, 16])
def test_a_faint_drawing_on_an_untouched_crop_is_seen(levels: int) -> None:
    flat = np.full((96, 128, 3), 200, np.uint8)
    flat[40:50, 30:90] = 90
    chain = [operation("crop", box=[0, 0, 120, 90])]
    written = flat[:90, :120].copy()
    written[20:30:2, 10:100] -= levels
    assert judged((flat,), chain, flat[:90, :120].copy())[0] is True
    assert judged((flat,), chain, written)[0] is False


def figure_of(part: np.ndarray, size: tuple[int, int], at: tuple[int, int], paper: Any = 255) -> np.ndarray:
    """A figure (H, W) = ``size`` that shows ``part``, four times as large, at (y, x)."""
    made = np.empty((*size, 3), np.uint8)
    made[:] = paper
    large = part.repeat(4, 0).repeat(4, 1)
    made[at[0] : at[0] + large.shape[0], at[1] : at[1] + large.shape[1]] = large
    return made


def test_a_figure_shows_its_picture_large_and_no_other_one() -> None:
    part = PICTURE[8:32, 8:40]  # 128 x 96 in the figure
    axes = [40, 30, 168, 126]
    chain = [
        operation("crop", box=[8, 8, 40, 32]),
        operation("other", "matplotlib", kind="figure", axes=axes, images=1),
    ]
    shown = figure_of(part, (160, 220), (30, 40))
    assert judged((PICTURE,), chain, shown)[0] is True
    assert judged((PICTURE,), chain, figure_of(part, (500, 800), (30, 40)))[0] is None  # a stamp in its corner
    other = np.random.default_rng(0).integers(0, 256, (160, 220, 3), dtype=np.uint8)
    assert judged((PICTURE,), chain, figure_of(part, (160, 220), (30, 40), other))[0] is None
    assert judged((PICTURE,), [*chain, operation("crop", box=[0, 0, 9, 9])], shown)[0] is None
