"""Crops, turns and drawings on views of another size than the original: every pixel stays where geometry says it is."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
from fakes import make_sample, make_trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen_views import sizing

from vtcli import geometry
from vtcli.signals import primitives
from vtcli.store.images import ImageStore

WIDTH, HEIGHT = 200, 150
RED = (255, 0, 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Crops are enlarged and inputs reduced: views are multiples of 28 between 56 x 56 and 112 x 112."""
    return ImageStore(tmp_path_factory.mktemp("images"), sizing(56 * 56, 112 * 112))


@pytest.fixture(scope="module")
def sample(store):
    """Each pixel says where it is: red and green are its column and row; blue tells it from a drawing."""
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    pixels = np.stack([x, y, np.full_like(x, 77)], axis=-1).astype(np.uint8)
    return make_sample(store, pixels=pixels, truth={"primitives": [{"type": "vline", "x": 1}]})


numbers = st.floats(0, 112)
zooms = st.tuples(numbers, numbers, numbers, numbers).map(
    lambda b: ("image_zoom_in_tool", {"bbox_2d": [min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])]})
)
turns = st.sampled_from([90, 180, 270]).map(lambda angle: ("image_rotate_tool", {"angle": angle}))
flips = st.sampled_from(["horizontal", "vertical"]).map(lambda d: ("image_flip_tool", {"direction": d}))


@settings(max_examples=80)
@given(st.lists(zooms | turns | flips, max_size=5))
def test_every_pixel_maps_to_the_pixel_it_was(store, sample, calls):
    trajectory = make_trajectory(sample, [*calls, "<answer>K</answer>"], store)
    for index, ref in enumerate(trajectory.images):
        matrix, pixels = geometry.to_input(trajectory.images, index), store.full(ref)
        assert matrix is not None
        corners = itertools.product((0, ref.width // 2, ref.width - 1), (0, ref.height // 3, ref.height - 1))
        for column, row in corners:
            x, y = geometry.map_point(matrix, column + 0.5, row + 0.5)  # the middle of the pixel
            assert pixels[row, column].tolist() == [int(x), int(y), 77]


lines = st.sampled_from(["horizontal", "vertical"]).flatmap(
    lambda kind: numbers.map(
        lambda at: (f"image_draw_{kind}_line_tool", {"y_position" if kind == "horizontal" else "x_position": at})
    )
)


@settings(max_examples=80)
@given(st.lists(zooms | turns | flips, max_size=3), lines)
def test_a_line_is_reported_where_it_was_painted(store, sample, calls, line):
    """The line runs through pixels of the input; all of them lie within its thickness of the reported coordinate."""
    name, arguments = line
    thin = {**arguments, "thickness": 1}
    trajectory = make_trajectory(sample, [*calls, (name, thin), "<answer>K</answer>"], store)
    drawn = asyncio.run(primitives.measure(trajectory))["drawn"]
    if not drawn:
        assert trajectory.results[-1].status == "error"  # outside of a smaller view
        return
    (primitive,) = drawn[-1]["primitives"]
    last = trajectory.images[-1]
    before, after = (store.full(trajectory.images[k]) for k in (last.parent, drawn[-1]["image"]))
    rows, columns = np.nonzero((after == RED).all(axis=-1))
    assert len(rows) >= min(last.width, last.height)
    thickness = max(1, round(max(last.width / last.view_width, last.height / last.view_height)))
    channel, key = (0, "x") if primitive["type"] == "vline" else (1, "y")
    places = before[rows, columns, channel]
    assert np.abs(places + 0.5 - primitive[key]).max() <= thickness / 2 + 1
