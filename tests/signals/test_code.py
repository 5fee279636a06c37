"""What was done to images and which red lines were crossed, of trajectories that the real sandbox and tools made."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from cases import each_case
from fakes import called, code_card, make_pixels, make_sample, make_trajectory, sure, tagged
from qwen_views import sizing

from vtcli.engines.scripted import ScriptedPolicy
from vtcli.envs.code import open_env
from vtcli.families.table import open_family
from vtcli.geometry import compose, map_point, placed
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.signals import code, red_lines, usage
from vtcli.signals.code import canonical, required, search
from vtcli.store.images import ImageStore
from vtcli.store.models import SHIPPED

DONE = "<answer>K</answer>"
BOX = [10, 20, 90, 70]
TRUTH = {"boxes": [{"label": "a", "box": [100, 80, 110, 90]}, {"label": "b", "box": BOX}]}
TURNED = {"transform": "rot90", "boxes": [{"label": "a", "box": [50, 10, 130, 60]}]}


def save(source, name):
    return tagged(f"{source}.save('{name}')\nprint('{name}')")


def act(source, index=0):
    return called("codevision", code=source, description="act", image_index=index)


PLAYS = {
    "crops": ("codev", TRUTH, [
        tagged("crop = image.crop((10, 20, 90, 70))\ncrop.save('a.png')\nprint('a.png')"),
        tagged("large = crop.resize((160, 100))\nlarge.save('b.png')\nprint('b.png')"),
        save("Image.open('image_0.png').crop((11, 20, 90, 70))", "c.png"),
        save("image.crop((0, 0, 150, 100))", "d.png"),
        save("ImageEnhance.Contrast(image.crop((10, 20, 90, 70))).enhance(2)", "e.png"),
        save("image.crop((-30, 10, 60, 60))", "f.png"),
    ]),
    "slips": ("codev", TRUTH, [
        save("image.crop((300, 300, 400, 400))", "a.png"),
        save("image.crop((40, 40, 40, 60))", "a.png"),
        tagged("print(nothing_here)"),
        tagged("print('a'"),
        tagged("Image.open('other_name.png')"),
        tagged("1 / 0"),
        tagged("import os\nos.remove('a.png')"),
        tagged("print(image.size)"),
    ]),
    "pads": ("codev", TRUTH, [
        save("image", "again.png"),
        tagged("image.crop((10, 20, 90, 70)).save('kept.png')"),
        tagged("again = Image.open('image_0.png')"),
        tagged("# crop the tag\nx = 1"),
        tagged("plt.imshow(image)\nplt.axis('off')\nplt.show()"),
        save("image.rotate(30)", "turned.png"),
    ]),
    "turned": ("codevision", TURNED, [
        act("result = image.rotate(90, expand=True)"),
        act("result = image.crop((10, 20, 60, 100))", 1),
        act("result = ImageOps.mirror(image.rotate(180))", 0),
        act("result = image.crop((0, 0, 100, 150))", 1),
        act("result = image", 7),
        act("result = 3"),
        act("print('only text')"),
    ]),
    "views": ("codedance", TRUTH, [tagged("x = input_image.crop((14, 28, 70, 56))\nx"), tagged("# nothing\ny = 2")]),
    "calls": ("codedance_call", TRUTH, [
        called("codedance_call", code="import numpy as np\nnp.fliplr(np.array(input_image))[28:84, 14:70]")
        + called("codedance_call", code="2 ** 10"),
    ]),
}  # fmt: skip


@pytest.fixture(scope="module")
def played(strongest, tmp_path_factory):
    """Every play, rolled out over one sandbox. The picture has 150 x 100 pixels and is seen as 140 x 112."""
    chat = open_family(SHIPPED / "base" / "v1").chat
    images = ImageStore(tmp_path_factory.mktemp("images"), sizing(784, 1_000_000))

    async def play(pool, name, truth, turns):
        sample = replace(make_sample(images, pixels=make_pixels(3, 150, 100)), truth=truth)
        env = open_env(sample, protocol=code_card(name), runner=pool, images=images)
        policy, limits = ScriptedPolicy(chat, [*turns, DONE]), Limits(10, 20_000, 4000, 32)
        found = await rollout(RolloutRequest(sample, 5), policy, chat, lambda _: env, limits)
        return await sure(found, images, pool.verify)

    async def run():
        return await asyncio.gather(*(play(strongest.pool, *each) for each in PLAYS.values()))

    return dict(zip(PLAYS, strongest.do(run()), strict=True))


def measured(signal, trajectory):
    values = asyncio.run(signal(trajectory))
    json.dumps(values, allow_nan=False)  # signals are stored
    return values


def rows(trajectory):
    return [
        (o["turn"], o["name"], o["image"], o["verified"], o["box"])
        for o in measured(code.measure, trajectory)["operations"]
    ]


def lines(trajectory):
    return measured(red_lines.measure, trajectory)["red_lines"]


# Operations


def test_crops_are_found_where_they_were_made_and_not_again_in_what_was_made_of_them(played):
    contrast = (4, "crop", 5, None, None), (4, "enhance", 5, None, None)  # a chain with an enhancement is a claim
    assert rows(played["crops"]) == [
        (0, "crop", 1, True, BOX),
        (1, "resize", 2, True, BOX),
        (2, "crop", 3, True, [11, 20, 90, 70]),
        (3, "crop", 4, True, [0, 0, 150, 100]),
        *contrast,
        (5, "crop", 6, True, [0, 10, 60, 60]),  # as used after clamping
    ]
    ious = [o["iou"] for o in measured(code.measure, played["crops"])["operations"]]
    # The better of two true boxes; 79 x 50 of 80 x 50; 80 x 50 of 150 x 100; the last shares 50 x 40 of 4000 and 3000.
    assert ious[:4] + ious[6:] == pytest.approx([1, 1, 79 / 80, 4000 / 15000, 2000 / 5000])
    assert ious[4:6] == [None, None]


def test_claims_without_an_image_are_kept_and_not_verified(played):
    assert (1, "crop", None, None, None) in rows(played["pads"])
    assert not [row for row in rows(played["slips"]) if row[3] is not None]


def test_a_crop_of_a_turned_image_is_in_the_pixels_of_the_first(played):
    # Image 1 is image 0 turned by 270 degrees clockwise: its (x, y) was (150 - y, x).
    assert rows(played["turned"]) == [
        (0, "rotate_270", 1, True, [0, 0, 150, 100]),
        (1, "crop", 2, True, [50, 10, 130, 60]),
        (2, "rotate_180", 3, True, [0, 0, 150, 100]),  # two operations of one call
        (2, "flip_horizontal", 3, True, [0, 0, 150, 100]),
        (3, "crop", 4, True, [0, 0, 150, 100]),
    ]
    values = measured(code.measure, played["turned"])
    assert values["operations"][1]["iou"] == pytest.approx(1)
    assert (values["required"], values["search"]) == (["rotate_270", "crop"], True)


def test_boxes_of_code_that_sees_the_view_are_in_original_pixels(played):
    # 140 x 112 seen, 150 x 100 stored: x times 150/140, y times 100/112
    (row,) = rows(played["views"])
    assert row[:4] == (0, "crop", 1, True)
    assert row[4] == pytest.approx([15, 25, 75, 50])


def test_calls_of_one_turn_share_its_number(played):
    found = rows(played["calls"])
    assert [(turn, name, image) for turn, name, image, _, _ in found] == [(0, "flip_horizontal", 1), (0, "crop", 1)]
    assert found[1][4] == pytest.approx([75, 25, 135, 75])  # mirrored: x from 140 - 70 to 140 - 14, in the view
    assert usage.turn_calls(played["calls"]) == [["ok", "ok"], []]


def test_native_tools_have_the_same_names(tmp_path):
    store = ImageStore(tmp_path)
    sample = replace(make_sample(store, pixels=make_pixels(0, 100, 80)), truth={"boxes": [{"box": [20, 20, 60, 60]}]})
    texts = [
        ("image_rotate_tool", {"angle": 90}),  # 80 x 100: x = 80 - y, y = x
        ("image_zoom_in_tool", {"bbox_2d": [20, 20, 60, 60]}),  # x from 20 to 60, y from 20 to 60
        ("image_zoom_in_tool", {"bbox_2d": [200, 20, 260, 60]}),  # outside
        ("image_flip_tool", {"direction": "vertical", "image_index": 0}),
        ("image_mark_points_tool", {"point_2d": [5, 6], "image_index": 0}),
    ]
    trajectory = make_trajectory(sample, [*texts, DONE], store)
    assert rows(trajectory) == [
        (0, "rotate_90", 1, True, [0, 0, 100, 80]),
        (1, "crop", 2, True, [20, 20, 60, 60]),
        (3, "flip_vertical", 3, True, [0, 0, 100, 80]),
        (4, "draw", 4, True, [0, 0, 100, 80]),
    ]
    assert measured(code.measure, trajectory)["operations"][1]["iou"] == 1
    assert lines(trajectory) == [[], [], ["invalid_coordinates"], [], []]


@each_case(
    "name, given, expected",
    [
        ("rotate", {"degrees": 90}, "rotate_90"),
        ("rotate", {"degrees": 184.9}, "rotate_180"),
        ("rotate", {"degrees": -90}, "rotate_270"),
        ("rotate", {"degrees": 96}, "rotate"),
        ("rotate", {"degrees": 6}, "rotate"),
        ("rotate", {"degrees": 0}, None),  # nothing was done, or hardly anything
        ("rotate", {"degrees": 360}, None),
        ("rotate", {"degrees": -4.5}, None),
        ("enhance", {"kind": "contrast", "factor": 1.0}, None),
        ("enhance", {"kind": "brightness", "factor": 1.04}, None),
        ("enhance", {"kind": "brightness", "factor": 1.06}, "enhance"),
        ("enhance", {"kind": "contrast", "factor": 0.9}, "enhance"),
        ("enhance", {"kind": "equalize"}, "enhance"),
        ("filter", {"kind": "MedianFilter", "size": 1}, None),
        ("filter", {"kind": "MedianFilter", "size": 3}, "filter"),
        ("filter", {"kind": "GaussianBlur", "radius": 0}, None),
        ("filter", {"kind": "SHARPEN"}, "filter"),
        ("rotate", {"matrix": [[1, 0, 0], [0, 1, 0]]}, "rotate"),
        ("flip", {"axis": "vertical"}, "flip_vertical"),
        ("flip", {"axis": "diagonal"}, "other"),
        ("crop", {}, "crop"),
        ("frames", {"indices": [3]}, "frames"),
        ("other", {"kind": "figure"}, "other"),
        ("other", {"kind": "unchanged"}, None),
        ("resize", {"by": "sandbox"}, None),
        ("levitate", {}, "other"),  # a forged record
    ],
)
def test_names(name, given, expected):
    assert canonical({"name": name, "arguments": given}) == expected


# The truth


@each_case(
    "truth, needs, searched",
    [
        ({}, None, None),
        ({"choices": ["a"]}, None, None),
        ({"transform": "none"}, [], False),
        ({"transform": "rot90"}, ["rotate_270"], False),
        ({"transform": "rot270"}, ["rotate_90"], False),
        ({"transform": "rot180"}, ["rotate_180"], False),
        ({"transform": "hflip", "boxes": [{"box": [0, 0, 1, 1]}]}, ["flip_horizontal", "crop"], True),
        ({"boxes": [{"box": [0, 0, 1, 1]}]}, ["crop"], True),
        ({"boxes": []}, [], False),
        ({"primitives": []}, [], False),
        ({"required": ["crop", "enhance"], "search": False}, ["crop", "enhance"], False),  # the data says so
    ],
)
def test_what_the_truth_asks_for(truth, needs, searched):
    assert (required(truth), search(truth)) == (needs, searched)


@each_case(
    "truth, searched",
    [
        ({"source": "chart"}, True),
        ({"source": "GeoQA"}, False),
        ({"source": "GeoQA", "search": True}, True),  # the row itself goes before
        ({"source": "chart", "boxes": []}, False),
        ({"choices": ["a"]}, None),
    ],
)
def test_rows_of_others_are_visual_searches_by_their_source(truth, searched):
    assert search(truth, ["vstar", "chart"]) is searched
    assert search({"source": "chart"}) is None  # nobody named sources


def test_what_undoes_a_mirrored_turn():
    for start in ("transpose", "transverse"):
        steps = {"rotate_90": "rot90", "flip_horizontal": "hflip", "flip_vertical": "vflip"}
        first, second = (steps[name] for name in required({"transform": start}))
        assert compose(compose(start, first), second) == "none"


def test_a_rectangle_is_placed_by_its_corners():
    matrix = placed((40, 20), "rot90", (10, 20, 30, 60))
    assert map_point(matrix, 0, 0) == pytest.approx((10, 60))
    assert map_point(matrix, 40, 0) == pytest.approx((10, 20))
    assert map_point(matrix, 0, 20) == pytest.approx((30, 60))
    assert map_point(placed((10, 10), "hflip", (0, 0, 100, 50)), 1, 1) == pytest.approx((90, 5))


# Red lines


def test_repeated_and_whole_crops(played):
    assert lines(played["crops"]) == [
        [],
        [],  # the same crop, enlarged
        ["repeated_crop"],
        ["repeated_crop"],  # of the whole image
        [],  # the same place, but enhanced
        [],  # clamped, and still a part of the image
    ]


def test_boxes_without_a_pixel_and_errors_that_the_prompt_rules_out(played):
    assert lines(played["slips"]) == [
        ["invalid_coordinates"],
        ["invalid_coordinates"],
        ["avoidable_error"],
        ["avoidable_error"],
        ["avoidable_error"],
        [],  # a division by zero may depend on what is seen
        ["avoidable_error"],  # refused
        [],
    ]


def test_reading_and_saving_as_a_scratch_pad(played):
    assert lines(played["pads"]) == [
        ["scratch_pad"],  # the input, shown again
        ["scratch_pad"],  # saved and not shown
        ["scratch_pad"],  # read, and nothing else
        [],  # says nothing, but reads and saves nothing
        [],  # the input in a figure: a claim, which may stand for a figure with more in it
        [],
    ]


def test_red_lines_of_calls_that_never_ran(played):
    assert lines(played["turned"]) == [
        [],
        [],
        [],
        ["repeated_crop"],  # all of image 1
        ["avoidable_error"],  # there is no image 7
        ["avoidable_error"],  # `result` holds no image
        ["scratch_pad"],  # the environment shows the image as it was
    ]


def test_every_call_has_an_entry(played):
    for trajectory in played.values():
        assert len(lines(trajectory)) == len(trajectory.results)
        statuses = [status for turn in usage.turn_calls(trajectory) for status in turn]
        assert statuses == [result.status for result in trajectory.results]
        assert len(usage.turn_calls(trajectory)) == len(trajectory.policy_turns)
