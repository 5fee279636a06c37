"""What is drawn over an image stands where the call acted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cases import each_case
from fakes import make_pixels, make_sample, make_trajectory
from hypothesis import given
from hypothesis import strategies as st

from vtcli.report import overlay, viewer
from vtcli.schema import CallResult, ImageRef
from vtcli.store.images import ImageStore

REF = ImageRef("0" * 64, "0" * 64, 224, 112, 112, 56)  # full 224 x 112, shown at half size


def test_truth_is_scaled_from_full_to_view() -> None:
    truth = {
        "boxes": [{"label": "a", "box": [20, 10, 60, 50]}],
        "primitives": [{"type": "vline", "x": 100}, {"type": "hline", "y": 30}, {"type": "point", "x": 8, "y": 4}],
    }
    from dataclasses import replace

    got = overlay.draw_truth(replace(make_sample(), images=(REF,), truth=truth))
    assert '<rect x="10.00" y="5.00" width="20.00" height="20.00"/>' in got
    assert 'd="M50.00 0V56"' in got
    assert 'd="M0 15.00H112"' in got
    assert 'cx="4.00" cy="2.00"' in got


@each_case(
    ("transform", "part"),
    [
        ({"op": "zoom", "box": [1, 2, 11, 22]}, 'x="1.00" y="2.00" width="10.00" height="20.00"'),
        ({"op": "hline", "y": 7.5}, 'd="M0 7.50H112"'),
        ({"op": "vline", "x": 9}, 'd="M9.00 0V56"'),
        ({"op": "points", "points": [[30, 20]]}, 'd="M27.20 17.20l5.60 5.60'),  # arms of 112 / 40
        ({"op": "flip", "direction": "horizontal"}, 'd="M56.0 0V56"'),
        ({"op": "flip", "direction": "vertical"}, 'd="M0 28.0H112"'),
        ({"op": "rotate", "angle": 90}, "A18.67 18.67 0 0 1 74.67 28.00"),  # a quarter, clockwise to the right
    ],
)
def test_operations_are_drawn(transform: dict[str, object], part: str) -> None:
    got = overlay.draw(transform, REF, "call")
    assert part in got
    assert got.startswith('<g class="call">')


def test_call_is_drawn_on_the_image_it_names(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    calls = [
        ("image_zoom_in_tool", {"bbox_2d": [0, 0, 56, 56]}),
        ("image_flip_tool", {"direction": "vertical", "image_index": 0}),
        ("image_zoom_in_tool", {"bbox_2d": [1, 1, 9, 9], "image_index": 7}),
    ]
    t = make_trajectory(make_sample(store), [*calls, "<answer>K</answer>"], store)
    assert [overlay.acted_on(r, t.images, 1 + min(i, 2)) for i, r in enumerate(t.results)] == [0, 0, None]
    assert overlay.draw_call(t.results[1], t.images, 0).count("M0 56.0H112") == 2  # halo and stroke


def test_code_that_names_no_image_acted_on_none_that_is_known(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    zoom = ("image_zoom_in_tool", {"bbox_2d": [0, 0, 56, 56]})
    t = make_trajectory(make_sample(store), [zoom, "<answer>K</answer>"], store)
    code = CallResult("code", {"code": "print(1)"}, "ok", "", 0.1, details={"status": "ok"})
    assert overlay.acted_on(code, t.images, 1) is None
    assert overlay.acted_on(replace(code, images=(1,)), t.images, 1) == 0  # checked: the parent says it
    figure = replace(t.images[1], parent=None, transform=None)
    assert overlay.acted_on(replace(code, images=(1,)), (t.images[0], figure), 1) is None


def test_frames_survive_drawings_only(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    calls = [
        ("image_draw_vertical_line_tool", {"x_position": 10}),
        ("image_mark_points_tool", {"point_2d": [5, 5]}),
        ("image_zoom_in_tool", {"bbox_2d": [0, 0, 56, 56]}),
        ("image_draw_vertical_line_tool", {"x_position": 10}),
    ]
    t = make_trajectory(make_sample(store, pixels=make_pixels(1)), [*calls, "<answer>1</answer>"], store)
    assert [overlay.same_frame(t, i) for i in range(5)] == [True, True, True, False, False]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["bbox_2d", "point_2d", "y_position", "x_position", "image_index", "angle"])


@given(st.dictionaries(keys, json_values, max_size=4))
def test_nothing_that_a_policy_writes_breaks_the_drawing(arguments: dict[str, object]) -> None:
    result = CallResult("x", arguments, "error", "no", 0.0)
    parent = overlay.acted_on(result, (REF,), 1)
    assert parent in (None, 0)
    got = overlay.draw_call(result, (REF,), 0)
    assert "nan" not in got
    assert "inf" not in got
    assert len(viewer.arguments_text(arguments)) <= 200
