"""Golden numbers by hand, and pixels as the judge of every map."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli import geometry
from vtcli.geometry import Areas
from vtcli.schema import ImageRef


def ref(width, height, parent=None, transform=None):
    return ImageRef("f", "v", width, height, width, height, parent, transform)


def test_areas_and_iou_of_two_squares():
    # 10 x 10 at 0 and at 5: 5 x 5 shared, 100 - 25 on either side; IoU = 25 / 175
    assert geometry.areas((0, 0, 10, 10), (5, 5, 15, 15)) == Areas(25, 75, 75)
    assert geometry.iou((0, 0, 10, 10), (5, 5, 15, 15)) == pytest.approx(1 / 7)


def test_mod_f1_by_hand():
    # TP 25, FP 75, FN 75: 50 / (50 + 7.5 + 75) = 50 / 132.5
    assert geometry.mod_f1(Areas(25, 75, 75)) == pytest.approx(50 / 132.5)
    # A generous crop, TP 100, FP 1500: 200 / (200 + 150); plain F1 would be 200 / 1700
    assert geometry.mod_f1(Areas(100, 1500, 0)) == pytest.approx(4 / 7)
    assert geometry.mod_f1(Areas(100, 1500, 0), w_fp=1.0) == pytest.approx(2 / 17)
    # 21 times the box's area: the last crop that reaches 0.5
    assert geometry.mod_f1(Areas(1, 20, 0)) == 0.5


@each_case("other", [(20, 20, 30, 30), (10, 0, 20, 10), (5, 5, 5, 9), (9, 9, 1, 1)])
def test_boxes_that_share_nothing_score_zero(other):
    assert geometry.mod_f1(geometry.areas((0, 0, 10, 10), other)) == 0.0
    assert geometry.iou((0, 0, 10, 10), other) == 0.0
    assert geometry.iou((1, 1, 1, 1), (1, 1, 1, 1)) == 0.0


small = st.integers(0, 12)


@given(st.tuples(small, small, small, small), st.tuples(small, small, small, small))
def test_areas_agree_with_pixel_masks(a, b):
    masks = []
    for x1, y1, x2, y2 in (a, b):
        mask = np.zeros((12, 12), dtype=bool)
        mask[y1:y2, x1:x2] = True
        masks.append(mask)
    p, t = masks
    assert geometry.areas(a, b) == ((p & t).sum(), (p & ~t).sum(), (t & ~p).sum())


def turn(name, pixels):
    """What each orientation does to an array of pixels, by numpy."""
    return {
        "none": lambda p: p,
        "rot90": lambda p: np.rot90(p, -1),
        "rot180": lambda p: np.rot90(p, 2),
        "rot270": lambda p: np.rot90(p, 1),
        "hflip": np.fliplr,
        "vflip": np.flipud,
        "transpose": lambda p: p.T,
        "transverse": lambda p: np.rot90(p, 2).T,
    }[name](pixels)


PICTURE = np.arange(6).reshape(2, 3)


@each_case("first", geometry.ORIENTATIONS)
@each_case("then", geometry.ORIENTATIONS)
def test_composition_is_that_of_pixels(first, then):
    both = turn(then, turn(first, PICTURE))
    assert np.array_equal(turn(geometry.compose(first, then), PICTURE), both)


@each_case("name", geometry.ORIENTATIONS)
def test_inverse_undoes(name):
    assert geometry.compose(name, geometry.inverse(name)) == "none"
    assert np.array_equal(turn(geometry.inverse(name), turn(name, PICTURE)), PICTURE)


def test_a_quarter_turn_and_a_flip_do_not_commute():
    assert geometry.compose("rot90", "hflip") == "transpose"
    assert geometry.compose("hflip", "rot90") == "transverse"


def test_orientation_of_operations():
    assert geometry.orientation_of({"op": "rotate", "angle": 270}) == "rot270"
    assert geometry.orientation_of({"op": "flip", "direction": "vertical"}) == "vflip"
    assert geometry.orientation_of({"op": "zoom"}) == geometry.orientation_of({"op": "hline"}) == "none"
    assert geometry.orientation_of({"op": "python"}) is None
    assert geometry.orientation_of(None) is None


ROTATE = [{"op": "rotate", "angle": angle} for angle in (90, 180, 270)]
FLIP_H, FLIP_V = {"op": "flip", "direction": "horizontal"}, {"op": "flip", "direction": "vertical"}


@each_case(
    ("transform", "size", "seen"),
    # Where the point (30, 20) of an image of 200 x 100 is seen after the operation.
    [
        (ROTATE[0], (100, 200), (80, 30)),  # clockwise: x = 100 - 20, y = 30
        (ROTATE[1], (200, 100), (170, 80)),
        (ROTATE[2], (100, 200), (20, 170)),  # counter-clockwise: x = 20, y = 200 - 30
        (FLIP_H, (200, 100), (170, 20)),
        (FLIP_V, (200, 100), (30, 80)),
        ({"op": "zoom", "box_full": [10, 5, 60, 45]}, (50, 40), (20, 15)),
        ({"op": "hline", "y": 3}, (200, 100), (30, 20)),
    ],
)
def test_points_go_back_to_the_input(transform, size, seen):
    images = [ref(200, 100), ref(*size, 0, transform)]
    matrix = geometry.to_input(images, 1)
    assert matrix is not None
    assert geometry.map_point(matrix, *seen) == (30, 20)


def test_a_box_goes_back_through_turn_crop_and_flip():
    # 200 x 100, turned clockwise to 100 x 200, cut at (10, 20) to 50 x 60, mirrored: the box (0, 0, 20, 30) was
    # (30, 0, 50, 30) in the crop, (40, 20, 60, 50) in the turned one; there x = y', y = 100 - x': (20, 40, 50, 60).
    zoom = {"op": "zoom", "box_full": [10, 20, 60, 80]}
    images = [ref(200, 100), ref(100, 200, 0, ROTATE[0]), ref(50, 60, 1, zoom), ref(50, 60, 2, FLIP_H)]
    matrix = geometry.to_input(images, 3)
    assert matrix is not None
    assert geometry.map_box(matrix, (0, 0, 20, 30)) == (20, 40, 50, 60)


def test_there_is_no_map_from_another_input_or_an_unknown_operation():
    images = [ref(10, 10), ref(10, 10), ref(10, 10, 1, FLIP_H), ref(10, 10, 0, {"op": "python"})]
    assert geometry.to_input(images, 2) is None
    assert geometry.to_input(images, 3) is None


@each_case(
    ("operation", "size", "vertical_30", "horizontal_30"),
    # A line at 30 of the turned image, in the image of 200 x 100 that it came from.
    [
        (ROTATE[0], (100, 200), {"type": "hline", "y": 70}, {"type": "vline", "x": 30}),
        (ROTATE[1], (200, 100), {"type": "vline", "x": 170}, {"type": "hline", "y": 70}),
        (ROTATE[2], (100, 200), {"type": "hline", "y": 30}, {"type": "vline", "x": 170}),
        (FLIP_H, (200, 100), {"type": "vline", "x": 170}, {"type": "hline", "y": 30}),
        (FLIP_V, (200, 100), {"type": "vline", "x": 30}, {"type": "hline", "y": 70}),
    ],
)
def test_lines_go_back_to_the_input(operation, size, vertical_30, horizontal_30):
    matrix = geometry.to_input([ref(200, 100), ref(*size, 0, operation)], 1)
    assert matrix is not None
    assert geometry.drawn({"op": "vline", "x": 30}, matrix) == [vertical_30]
    assert geometry.drawn({"op": "hline", "y": 30}, matrix) == [horizontal_30]


def test_view_coordinates_are_scaled_to_original_pixels():
    image = ImageRef("f", "v", width=300, height=100, view_width=100, view_height=50)
    onto = geometry.from_view(image)
    assert geometry.drawn({"op": "points", "points": [[10, 20], [0, 0]]}, onto) == [
        {"type": "point", "x": 30, "y": 40},
        {"type": "point", "x": 0, "y": 0},
    ]
    assert geometry.drawn({"op": "rotate", "angle": 90}, onto) == []


def vertical(x):
    return {"type": "vline", "x": x}


def horizontal(y):
    return {"type": "hline", "y": y}


def point(x, y):
    return {"type": "point", "x": x, "y": y}


@each_case(
    ("predicted", "true", "expected"),
    # In an image of 160 x 120: T = 40 for vertical lines, 30 for horizontal ones, sqrt(40^2 + 30^2) = 50 for points.
    [
        (vertical(30), vertical(20), 0.75),  # 1 - 10/40
        (vertical(60), vertical(20), 0.0),  # at the tolerance
        (vertical(159), vertical(20), 0.0),  # beyond it, not negative
        (horizontal(38), horizontal(20), 0.4),  # 1 - 18/30
        (point(13, 14), point(10, 10), 0.9),  # distance 5 of 50
        (point(40, 50), point(10, 10), 0.0),  # distance 50
        (vertical(20), horizontal(20), 0.0),
        (vertical(20), point(20, 20), 0.0),
        (point(20, 20), horizontal(20), 0.0),
    ],
)
def test_similarity_by_hand(predicted, true, expected):
    assert geometry.similarity(predicted, true, 160, 120) == pytest.approx(expected)


def test_matching_is_optimal_not_greedy():
    # T = 10. s(10, 12) = 0.8, s(14, 12) = 0.8, s(14, 20) = 0.4, s(10, 20) = 0. Best: 10-12 and 14-20, 1.2 in all;
    # greedy may take 14-12 first and end with 0.8. F1 = 2 * 1.2 / (2 + 2).
    assert geometry.draw_f1([vertical(14), vertical(10)], [vertical(12), vertical(20)], 40, 40) == pytest.approx(0.6)


def test_draw_f1_counts_superfluous_and_missing_primitives():
    truth = [vertical(20), point(10, 10)]
    assert geometry.draw_f1(truth, truth, 160, 120) == 1.0
    assert geometry.draw_f1(truth[:1], truth, 160, 120) == pytest.approx(2 / 3)  # 2 * 1 / (1 + 2)
    assert geometry.draw_f1([*truth, horizontal(5)], truth, 160, 120) == pytest.approx(0.8)  # 2 * 2 / (3 + 2)
    assert geometry.draw_f1([], truth, 160, 120) == 0.0
    assert geometry.draw_f1(truth, [], 160, 120) == 0.0


primitives = st.lists(
    st.one_of(
        st.builds(vertical, st.integers(0, 40)),
        st.builds(horizontal, st.integers(0, 40)),
        st.builds(point, st.integers(0, 40), st.integers(0, 40)),
    ),
    max_size=5,
)


@given(primitives, primitives, st.randoms())
def test_draw_f1_is_bounded_and_ignores_order(predicted, true, random):
    value = geometry.draw_f1(predicted, true, 40, 30)
    assert 0.0 <= value <= 1.0
    random.shuffle(predicted)
    assert geometry.draw_f1(predicted, true, 40, 30) == pytest.approx(value)
    assert geometry.draw_f1(true, true, 40, 30) == (1.0 if true else 0.0)
