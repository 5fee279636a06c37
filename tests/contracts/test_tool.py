"""One contract over every native tool, and one from outside: what it draws from, what it refuses, what it leaves be."""

from __future__ import annotations

import copy
import inspect
import json
import math
import pickle
import pkgutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from cases import each_case
from fakes import native_tools
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import somebody

import vtcli.tools
from vtcli.errors import ToolError
from vtcli.protocols import Pixels, Tool, ToolOutput
from vtcli.schema import ImageRef

TOOLS: dict[str, Tool] = {**native_tools(), "image_darken_tool": somebody().Darken()}
GOOD: dict[str, list[dict[str, Any]]] = {
    "image_zoom_in_tool": [{"bbox_2d": [10, 5, 30, 25]}, {"bbox_2d": [10.5, 5, 900, 900], "label": "x"}],
    "image_rotate_tool": [{"angle": 90}, {"angle": 180.0}, {"angle": -90}],
    "image_flip_tool": [{"direction": "horizontal"}, {"direction": "VERTICAL"}],
    "image_mark_points_tool": [{"point_2d": [3, 4]}, {"point_2d": [[0, 0], [60, 40]], "size": 100, "shape": "X"}],
    "image_draw_horizontal_line_tool": [{"y_position": 0}, {"y_position": 40, "thickness": 100, "style": "dotted"}],
    "image_draw_vertical_line_tool": [{"x_position": 60}, {"x_position": 7.5, "color": "#00ff00"}],
    "image_darken_tool": [{"by": 30}],
}
"""Calls in an image that is shown as 60 x 40; a tool that is missing here fails the first test."""
SIZES = [((60, 40), (60, 40)), ((300, 80), (60, 40)), ((30, 20), (60, 40)), ((61, 39), (60, 40))]
LIMITED = {"thickness": 101, "size": 0, "style": "wavy", "shape": "star", "color": [0, 0, 256], "by": 201}
"""A value beyond the bounds of each optional argument, and of a required one."""
WRONG = ["5", "", True, None, [], {}, [[]], [[1]], math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e12, -1e12]
OUTSIDE = [(1e3, "bbox_2d"), (61, "point_2d"), (41, "y_position"), (61, "x_position"), (-1, "y_position")]


def image(full: tuple[int, int] = (60, 40), view: tuple[int, int] = (60, 40)) -> tuple[Pixels, ImageRef]:
    """Read-only pixels that are all different, as the store hands them out."""
    numbers = np.arange(full[0] * full[1]).reshape(full[1], full[0])
    pixels = np.stack([numbers % 251, numbers // 251 % 251, np.full_like(numbers, 7)], axis=-1).astype(np.uint8)
    pixels.flags.writeable = False
    return pixels, ImageRef("f", "v", *full, *view)


def required(tool: Tool) -> list[str]:
    return list(tool.schema["function"]["parameters"]["required"])


def called(tool: Tool, arguments: Mapping[str, Any], sizes: tuple[Any, Any] = SIZES[0]) -> ToolOutput:
    """The output, which is an image of its own in every respect."""
    pixels, ref = image(*sizes)
    before, given_ = pixels.copy(), copy.deepcopy(dict(arguments))
    out = tool(pixels, ref, arguments)
    assert np.array_equal(pixels, before) and dict(arguments) == given_
    assert out.pixels.dtype == np.uint8 and out.pixels.ndim == 3 and out.pixels.shape[2] == 3
    assert out.pixels.flags.c_contiguous and min(out.pixels.shape) > 0
    assert out.pixels.size <= pixels.size  # no tool makes an image larger
    assert json.loads(json.dumps(dict(out.transform)))["op"]
    return out


def test_every_tool_of_the_package_is_under_this_contract() -> None:
    modules = {f"vtcli.tools.{module.name}" for module in pkgutil.iter_modules(vtcli.tools.__path__)}
    tested = {type(tool).__module__ for tool in TOOLS.values()}
    assert modules - tested == {"vtcli.tools.arguments"}
    assert set(GOOD) == set(TOOLS) and {"somebody"} < tested


@each_case("name", TOOLS)
def test_its_schema_is_a_function_of_its_name_with_arguments_that_exist(name: str) -> None:
    tool = TOOLS[name]
    function = json.loads(json.dumps(tool.schema))["function"]
    properties = function["parameters"]["properties"]
    assert function["name"] == tool.name == name and function["description"]
    assert "image_index" in properties and set(required(tool)) <= set(properties)
    assert required(tool)
    for arguments in GOOD[name]:
        assert set(required(tool)) <= set(arguments) <= {*properties, "label"}
    assert list(inspect.signature(tool).parameters) == ["pixels", "ref", "arguments"]
    if not name.startswith("image_darken"):
        assert pickle.loads(pickle.dumps(tool)) == tool  # processes of a stage hand it on


@each_case("name", TOOLS)
def test_it_is_pure_and_states_its_operation_in_pixels_of_the_view(name: str) -> None:
    for arguments in GOOD[name]:
        transforms = []
        for sizes in SIZES:
            one, other = called(TOOLS[name], arguments, sizes), called(TOOLS[name], arguments, sizes)
            assert np.array_equal(one.pixels, other.pixels) and one.transform == other.transform
            transforms.append({key: value for key, value in one.transform.items() if key != "box_full"})
            if box := one.transform.get("box_full"):  # within the original, and what was cut
                assert 0 <= box[0] < box[2] <= sizes[0][0] and 0 <= box[1] < box[3] <= sizes[0][1]
                assert one.pixels.shape[:2] == (box[3] - box[1], box[2] - box[0])
        assert transforms == [transforms[0]] * len(SIZES)  # whatever the original's size


@each_case("name", TOOLS)
def test_it_shows_the_whole_image_or_says_which_part(name: str) -> None:
    for sizes in SIZES:
        for arguments in GOOD[name]:
            out = called(TOOLS[name], arguments, sizes)
            if "box" not in out.transform:
                turned = out.transform.get("angle") in (90, 270)
                assert out.pixels.shape[:2] == (sizes[0] if turned else sizes[0][::-1])


@each_case("name", native_tools())
def test_what_is_no_argument_of_its_kind_is_refused(name: str) -> None:
    tool, (pixels, ref) = TOOLS[name], image()
    for key in required(tool):
        for wrong in WRONG:
            nested = [] if key not in ("bbox_2d", "point_2d") else [[1, 1, wrong, 9][: 4 if key == "bbox_2d" else 3]]
            for value in (wrong, *nested, *([[wrong, 3], [[1, 2], [3, wrong]]] if key == "point_2d" else ())):
                with pytest.raises(ToolError) as caught:
                    tool(pixels, ref, {key: value})
                assert key in str(caught.value), value
        with pytest.raises(ToolError) as caught:
            tool(pixels, ref, {})
        assert key in str(caught.value)


@each_case("name", TOOLS)
def test_a_value_beyond_its_bounds_is_refused_by_the_arguments_name(name: str) -> None:
    tool, (pixels, ref) = TOOLS[name], image()
    properties = tool.schema["function"]["parameters"]["properties"]
    for key in LIMITED.keys() & properties:
        with pytest.raises(ToolError) as caught:
            tool(pixels, ref, {**GOOD[name][0], key: LIMITED[key]})
        assert key in str(caught.value)
    for value, key in OUTSIDE:
        if key in required(tool):
            given_ = {"bbox_2d": [value, value, value + 9, value + 9], "point_2d": [value, 2]}.get(key, value)
            with pytest.raises(ToolError) as caught:
                tool(pixels, ref, {key: given_})
            assert key in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_json_is_an_image_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(native_tools())))
    tool = TOOLS[name]
    keys = sorted(tool.schema["function"]["parameters"]["properties"])
    arguments = {**GOOD[name][0], **data.draw(st.dictionaries(st.sampled_from(keys), json_values, max_size=3))}
    with suppress(ToolError):
        called(tool, arguments, data.draw(st.sampled_from(SIZES)))
