"""Pixels after each tool, against numpy and by hand; and what each tool refuses."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_case
from fakes import native_tools

from vtcli.errors import ToolError
from vtcli.schema import ImageRef
from vtcli.tools.mark_points import stamp

TOOLS = native_tools()
ZOOM, ROTATE, FLIP, MARK, HLINE, VLINE = TOOLS.values()
RED = [255, 0, 0]


def image(width, height, view=None):
    """Pixels that are all different, and a reference whose view has another size."""
    numbers = np.arange(width * height).reshape(height, width)
    pixels = np.stack([numbers % 251, numbers // 251 % 251, np.full_like(numbers, 7)], axis=-1).astype(np.uint8)
    view_width, view_height = view or (width, height)
    return pixels, ImageRef("f", "v", width, height, view_width, view_height)


def painted(out, color=RED):
    """Rows and columns of the painted pixels."""
    return np.argwhere((out == color).all(axis=-1))


def test_zoom_cuts_the_original_pixels():
    pixels, ref = image(60, 40)
    out = ZOOM(pixels, ref, {"bbox_2d": [10, 5, 30, 25], "label": "x"})
    assert np.array_equal(out.pixels, pixels[5:25, 10:30])
    assert out.transform == {"op": "zoom", "box": [10, 5, 30, 25], "box_full": [10, 5, 30, 25]}
    assert out.note == ""


def test_zoom_scales_from_view_to_original_and_rounds_outwards():
    # 300 x 80 shown as 100 x 40: x is 3 times, y is 2 times. (10.2, 5.4, 19.9, 12.25) becomes (30.6, 10.8, 59.7, 24.5).
    pixels, ref = image(300, 80, view=(100, 40))
    out = ZOOM(pixels, ref, {"bbox_2d": [10.2, 5.4, 19.9, 12.25]})
    assert out.transform["box_full"] == [30, 10, 60, 25]
    assert np.array_equal(out.pixels, pixels[10:25, 30:60])
    # 84 shown as 112: 28 * 84/112 = 21 exactly, whatever the rounding of the division.
    pixels, ref = image(84, 84, view=(112, 112))
    assert ZOOM(pixels, ref, {"bbox_2d": [28, 28, 56, 112]}).transform["box_full"] == [21, 21, 42, 84]


def test_a_box_partly_outside_is_clamped_and_said():
    pixels, ref = image(60, 40)
    out = ZOOM(pixels, ref, {"bbox_2d": [-5, 30, 10, 400]})
    assert np.array_equal(out.pixels, pixels[30:40, 0:10])
    assert out.transform["box"] == [0, 30, 10, 40]
    assert "cut at the image's edge" in out.note


@each_case("angle", [90, 180, 270])
def test_rotation_is_clockwise(angle):
    pixels, ref = image(60, 40)
    out = ROTATE(pixels, ref, {"angle": angle})
    assert np.array_equal(out.pixels, np.rot90(pixels, -(angle // 90)))
    assert out.transform == {"op": "rotate", "angle": angle}
    if angle == 90:  # the upper left pixel goes to the upper right
        assert np.array_equal(out.pixels[0, -1], pixels[0, 0])


def test_angles_are_taken_modulo_a_turn():
    pixels, ref = image(6, 4)
    assert ROTATE(pixels, ref, {"angle": -90}).transform == {"op": "rotate", "angle": 270}
    assert ROTATE(pixels, ref, {"angle": 450.0}).transform == {"op": "rotate", "angle": 90}


def test_flips():
    pixels, ref = image(60, 40)
    sideways = FLIP(pixels, ref, {"direction": "horizontal"})
    assert np.array_equal(sideways.pixels, pixels[:, ::-1])
    assert np.array_equal(FLIP(pixels, ref, {"direction": "Vertical"}).pixels, pixels[::-1])
    assert sideways.transform == {"op": "flip", "direction": "horizontal"}


def test_a_horizontal_line_covers_three_rows_around_its_position():
    pixels, ref = image(60, 40)
    out = HLINE(pixels, ref, {"y_position": 10})
    expected = pixels.copy()
    expected[9:12] = RED
    assert np.array_equal(out.pixels, expected)
    assert out.transform == {"op": "hline", "y": 10}


def test_a_vertical_line_looks_as_thick_in_the_view_as_asked():
    # 300 wide shown as 100: x = 20 is column 60, 3 pixels are 9 columns, 56 to 64.
    pixels, ref = image(300, 40, view=(100, 40))
    out = VLINE(pixels, ref, {"x_position": 20, "color": [0, 255, 0]})
    expected = pixels.copy()
    expected[:, 56:65] = (0, 255, 0)
    assert np.array_equal(out.pixels, expected)
    assert out.transform == {"op": "vline", "x": 20}


@each_case(("position", "rows"), [(0, [0, 1]), (40, [38, 39]), (39.9, [38, 39])])
def test_a_line_at_the_edge_stays_inside(position, rows):
    pixels, ref = image(60, 40)
    out = HLINE(pixels, ref, {"y_position": position})
    assert sorted(set(painted(out.pixels)[:, 0])) == rows


def test_line_styles_leave_gaps():
    pixels, ref = image(60, 40)
    solid, dashed, dotted = (
        len(painted(HLINE(pixels, ref, {"y_position": 9, "style": style, "thickness": 1}).pixels))
        for style in ("solid", "dashed", "dotted")
    )
    assert (solid, dashed, dotted) == (60, 40, 20)  # all, 4 of 6, 1 of 3


def test_marks_sit_on_their_pixel_at_any_scale():
    # 120 x 80 shown as 60 x 40: the point (10, 20) is pixel (20, 40), size 5 becomes 10.
    pixels, ref = image(120, 80, view=(60, 40))
    out = MARK(pixels, ref, {"point_2d": [10, 20], "shape": "square"})
    found = painted(out.pixels)
    assert found.min(axis=0).tolist() == [30, 10]
    assert found.max(axis=0).tolist() == [50, 30]
    assert len(found) == 21 * 21
    assert out.transform == {"op": "points", "points": [[10, 20]]}


def test_several_marks_and_marks_at_the_corners():
    pixels, ref = image(60, 40)
    out = MARK(pixels, ref, {"point_2d": [[0, 0], [60, 40], [30, 20]], "size": 2, "color": "blue"})
    assert [out.pixels[y, x].tolist() for x, y in ((0, 0), (59, 39), (30, 20))] == [[0, 0, 255]] * 3
    assert out.transform["points"] == [[0, 0], [60, 40], [30, 20]]


def test_shapes():
    # Half-width 2: an X has both diagonals, a plus both middle lines (9 pixels each); a disc has 13 pixels.
    assert stamp(2, "x").sum() == stamp(2, "plus").sum() == 9
    assert np.array_equal(stamp(2, "x"), np.eye(5, dtype=bool) | np.eye(5, dtype=bool)[::-1])
    assert stamp(2, "circle").sum() == 13
    assert stamp(2, "square").sum() == 25


@each_case(
    ("tool", "arguments", "named"),
    [
        (ZOOM, {"bbox_2d": [1, 2, 3]}, "4 numbers"),
        (ZOOM, {"bbox_2d": [30, 5, 10, 25]}, "x1 < x2"),
        (ZOOM, {"bbox_2d": [10, 5, 10, 25]}, "x1 < x2"),
        (ZOOM, {"bbox_2d": [60, 5, 90, 25]}, "60x40"),
        (ZOOM, {"bbox_2d": [-9, 5, 0, 25]}, "60x40"),
        (ZOOM, {"bbox_2d": [10, 5, 10.5, 25]}, "60x40"),
        (ZOOM, {"bbox_2d": [59.5, 5, 80, 25]}, "60x40"),
        (ROTATE, {"angle": 45}, "90, 180 or 270"),
        (ROTATE, {"angle": 0}, "90, 180 or 270"),
        (ROTATE, {"angle": 90.5}, "angle"),
        (FLIP, {"direction": "sideways"}, "horizontal, vertical"),
        (MARK, {"point_2d": [1, 2, 3]}, "2 numbers"),
        (MARK, {"point_2d": [[1, 2]] * 65}, "64"),
        (MARK, {"point_2d": [61, 2]}, "x of point_2d"),
        (MARK, {"point_2d": [1, -2]}, "y of point_2d"),
        (HLINE, {"x_position": 4}, "y_position"),
    ],
)
def test_refusals_name_the_argument_and_its_choices(tool, arguments, named):
    with pytest.raises(ToolError) as caught:
        tool(*image(60, 40), arguments)
    assert named in str(caught.value)


def test_a_sliver_is_refused_because_no_model_can_be_shown_it():
    pixels, ref = image(400, 20)
    with pytest.raises(ToolError, match="too narrow"):
        ZOOM(pixels, ref, {"bbox_2d": [0, 3, 400, 4]})
