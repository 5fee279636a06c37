"""Coordinates of demonstrations of others: moved to what the environment shows, or their row is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import native_card
from PIL import Image
from qwen_views import sizing
from sklearn.datasets import load_sample_images

from stages import sft
from vtcli.algo.optim import Optim
from vtcli.data.importers.problems import RowProblem
from vtcli.data.importers.rows import generate
from vtcli.data.teachers.scripted import Teacher
from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.demonstrate import DemoEpisode, DemonstrationSetup, MemoryImages, demonstrate
from vtcli.envs.grounding import Texts
from vtcli.envs.grounding import card as grounding_card
from vtcli.envs.played import Playback, playback
from vtcli.envs.prompts import PromptStyle
from vtcli.errors import InputError
from vtcli.families.calls import parse_calls
from vtcli.protocols import ALONE, Pixels
from vtcli.store import records
from vtcli.store.images import ImageStore, encode_png
from vtcli.store.records import Demo, DemoSet

PHOTO: Pixels = np.ascontiguousarray(load_sample_images().images[0][:400, :600])  # 600 x 400
VIEWS = sizing(10_000, 12_600)  # 112 px a side, as at scale=tiny
VIEW = (112, 84)  # of 600 x 400: sides are multiples of 28
BOX = (150, 100, 450, 300)  # in pixels of the photo
SIDES = {
    "pixels": (600, 400),
    "view": VIEW,
    "unit": (1, 1),
    "thousand": (1000, 1000),
    "percent": (100, 100),
    "resized": (420, 280),  # of a model that sees at most so much: nothing but the crop tells it
}
PROMPT = PromptStyle("compact", "{tools}", "{question}", "{question}", observation="<image>")


def inside(space: str, box: Sequence[float] = BOX) -> list[float]:
    """The box in a unit; whole where the unit has many."""
    sides = SIDES[space]
    return [round(v * sides[n % 2] / PHOTO.shape[1 - n % 2], 4 if space == "unit" else 0) for n, v in enumerate(box)]


def cut(box: Sequence[float] = BOX) -> Pixels:
    x1, y1, x2, y2 = map(int, box)
    return np.ascontiguousarray(PHOTO[y1:y2, x1:x2])


def turns(*said: tuple[str, Mapping[str, Any], str]) -> list[dict[str, str]]:
    """A question, calls by name, arguments and observation, and an answer."""
    talk = [{"from": "human", "value": "<image>What is it?"}]
    for name, arguments, answer in said:
        call = json.dumps({"name": name, "arguments": arguments})
        talk.append({"from": "gpt", "value": f"<think>Closer.</think><tool_call>\n{call}\n</tool_call>"})
        talk.append({"from": "tool", "value": answer})
    return [*talk, {"from": "gpt", "value": "<answer>a tower</answer>"}]


def taken(
    folder: Path, talk: list[dict[str, str]], pictures: Sequence[Pixels], card: EnvCard | None = None, **reading: Any
) -> DemoEpisode:
    """The demonstration that synth makes of a row. Raises ``RowProblem``."""
    for number, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    row = {"images": [f"{number}.png" for number in range(len(pictures))], "conversations": talk}
    (folder / "a.jsonl").write_text(json.dumps(row | reading.pop("row", {})))
    columns = {"box_size": "size"} if "resized" in reading.values() else {}
    how: Any = {"name": "own", "row": "sharegpt", "columns": columns, "reading": reading}
    item = generate(0, 0, "demo-train", path=str(folder / "a.jsonl"), **how)
    setting = DemonstrationSetup(card or native_card(), Teacher(), PROMPT, VIEWS)
    return asyncio.run(demonstrate(item, "imported", np.random.default_rng(0), setting))


def played(episode: DemoEpisode, card: EnvCard | None = None) -> Playback:
    """The demonstration's own calls, on its own pictures."""
    images = MemoryImages(VIEWS)
    demo = Demo(episode.id, episode.messages, (), tuple(map(images.add, episode.images)), episode.unlearnt)
    return asyncio.run(playback([demo], card or native_card(), EnvInputs(images, PROMPT)))


def arguments(episode: DemoEpisode, number: int = 0) -> Mapping[str, Any]:
    said = [m["content"] for m in episode.messages if m["role"] == "assistant"][number]
    return parse_calls(said)[0].arguments or {}


ZOOM, MARK = "image_zoom_in_tool", "image_mark_points_tool"
ROW, COLUMN = "image_draw_horizontal_line_tool", "image_draw_vertical_line_tool"
RIGHT = [28, 21, 84, 63]  # BOX in the view


def test_boxes_of_every_frame_are_moved_to_the_view_by_what_the_crop_shows(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {}
    for space in SIDES:
        episode = taken(tmp_path, turns((ZOOM, {"bbox_2d": inside(space)}, "<image>ok")), [PHOTO, cut()])
        box, found = arguments(episode)["bbox_2d"], played(episode)
        if max(abs(a - b) for a, b in zip(box, RIGHT, strict=True)) > 1 or (found.calls, found.failures) != (1, ()):
            wrong[space] = box, found
    assert not wrong


def test_every_kind_of_coordinates_is_moved_in_every_frame_that_a_convention_names(tmp_path: Path) -> None:
    """(300, 200) is the middle of the photo; the view's is (56, 42)."""
    wrong: dict[str, Any] = {}
    for space, (width, height) in SIDES.items():
        x, y = (round(side / 2, 4) if space == "unit" else side // 2 for side in (width, height))
        cases = {
            MARK: ({"point_2d": [[x, y], [x, y]]}, {"point_2d": [[56, 42], [56, 42]]}),
            ROW: ({"y_position": y}, {"y_position": 42}),
            COLUMN: ({"x_position": x}, {"x_position": 56}),
            ZOOM: ({"bbox_2d": inside(space)}, {"bbox_2d": RIGHT}),
        }
        for name, (given, right) in cases.items():
            row = {"row": {"size": [width, height]}} if space == "resized" else {}
            talk = turns((name, given, "<image>ok"))
            episode = taken(tmp_path, talk, [PHOTO, PHOTO], call_space=space, crops="any", **row)
            found = arguments(episode)
            flat = lambda v: np.ravel(next(iter(v.values())))  # noqa: E731
            if np.abs(flat(found) - flat(right)).max() > 1 or played(episode).failures:
                wrong[f"{space} {name}"] = found
    assert not wrong


def test_a_crop_tells_the_frame_of_the_rows_other_calls(tmp_path: Path) -> None:
    talk = turns((ZOOM, {"bbox_2d": inside("pixels")}, "<image>"), (MARK, {"point_2d": [150, 100]}, "<image>"))
    episode = taken(tmp_path, talk, [PHOTO, cut(), cut()])
    middle = np.array(VIEWS(200, 300)[::-1]) / 2  # of the crop of 300 x 200, which is seen at its own size
    assert np.abs(np.array(arguments(episode, 1)["point_2d"]) - middle).max() <= 1


def test_a_call_names_the_image_that_its_crop_is_of(tmp_path: Path) -> None:
    """DeepEyes and Pixel-Reasoner crop the question's picture again; by default the environment takes the latest."""
    second = (0, 0, 200, 150)
    named: list[dict[str, int]] = [{}, {"image_idx": 0}, {"target_image": 1}, {"image_index": 1}]
    for more in named:
        talk = turns(
            (ZOOM, {"bbox_2d": inside("pixels")}, "<image>"), (ZOOM, {"bbox_2d": [*second], **more}, "<image>")
        )
        found = arguments(taken(tmp_path, talk, [PHOTO, cut(), cut(second)]), 1)
        assert dict(found) == {"bbox_2d": [0, 0, 37, 32], "image_index": 0}, more


FIRST = (ZOOM, {"bbox_2d": inside("pixels")}, "<image>")
LATER = (30, 20, 170, 140)  # in the first crop, 300 x 200, which is seen as 112 x 84
IN_LATER = [11, 8, 63, 59]


def test_calls_of_an_image_that_an_earlier_call_returned_are_moved_to_its_view(tmp_path: Path) -> None:
    one = cut()
    two = np.ascontiguousarray(one[20:140, 30:170])
    three = np.ascontiguousarray(two[30:110, 40:130])
    again = (300, 0, 600, 200)
    upright = np.ascontiguousarray(PHOTO[::-1, ::-1])

    def crop(box: Sequence[float], **more: Any) -> tuple[str, Mapping[str, Any], str]:
        return ZOOM, {"bbox_2d": [*box], **more}, "<image>"

    second = {"bbox_2d": IN_LATER, "image_index": 1}
    cases: dict[str, tuple[list[Any], list[Pixels], dict[str, Any], list[dict[str, Any]]]] = {
        **{
            f"{names}": ([FIRST, crop(LATER, **names)], [PHOTO, one, two], {}, [second])
            for names in ({"image_idx": 1}, {"img_idx": 1}, {"target_image": 2}, {"image_index": 1}, {"image_idx": "1"})
        },
        "a crop of a crop": (
            [FIRST, crop(LATER, image_idx=1), crop((40, 30, 130, 110), image_idx=2)],
            [PHOTO, one, two, three],
            {},
            [second, {"bbox_2d": [32, 21, 104, 77], "image_index": 2}],
        ),
        "the first again": (
            [FIRST, crop(LATER, image_idx=1), crop(again, image_idx=0)],
            [PHOTO, one, two, cut(again)],
            {},
            [second, {"bbox_2d": [56, 0, 112, 42], "image_index": 0}],
        ),
        "thousandths": (
            [crop(inside("thousand")), crop((100, 100, 567, 700), image_idx=1)], [PHOTO, one, two], {}, [second]
        ),
        "the first resized, the crop in its own pixels": (
            [crop(inside("resized")), crop(LATER, image_idx=1)], [PHOTO, one, two], {}, [second]
        ),
        "the first as a view, the crop in its own pixels": (
            [crop(inside("view")), crop(LATER, image_idx=1)], [PHOTO, one, two], {}, [second]
        ),
        "a point, whose picture is not compared": (
            [FIRST, (MARK, {"point_2d": [30, 20], "image_idx": 1}, "<image>")],
            [PHOTO, one, one],
            {},
            [{"point_2d": [11, 8], "image_index": 1}],
        ),
        "by a convention, nothing is compared": (
            [FIRST, crop(LATER, image_idx=1)],
            [PHOTO, one, two],
            {"call_space": "pixels", "crops": "any"},
            [second],
        ),
        "a turn of the first": (
            [FIRST, ("image_rotate_tool", {"angle": 180, "image_idx": 0}, "<image>")],
            [PHOTO, one, upright],
            {},
            [{"angle": 180, "image_index": 0}],
        ),
    }  # fmt: skip
    wrong: dict[str, Any] = {}
    for name, (calls, pictures, reading, right) in cases.items():
        try:
            episode = taken(tmp_path, turns(*calls), pictures, **reading)
        except RowProblem as problem:
            wrong[name] = problem.message
            continue
        found = [dict(arguments(episode, number)) for number in range(1, len(calls))]
        near = all(
            one.keys() == other.keys()
            and all(np.abs(np.array(one[key]) - np.array(other[key])).max() <= 1 for key in one)
            and one["image_index"] == other["image_index"]
            for one, other in zip(found, right, strict=True)
        )
        if not near or played(episode).failures:
            wrong[name] = found, played(episode).failures
    assert not wrong


def test_calls_of_an_image_that_is_not_known_are_refused_unless_they_are_shown_to_fail(tmp_path: Path) -> None:
    absent = (MARK, {"point_2d": [30, 20], "image_idx": 5}, "<image>")
    cropped = (ZOOM, {"bbox_2d": [*LATER], "image_idx": 1}, "<image>")
    cases: dict[str, tuple[list[Any], list[Pixels], dict[str, Any]]] = {
        "beyond the last": ([FIRST, absent], [PHOTO, cut(), cut()], {}),
        "an observation that the row does not hold": (
            [FIRST, cropped], [PHOTO], {"crops": "cut", "call_space": "pixels"}
        ),
    }  # fmt: skip
    wrong: dict[str, str] = {}
    for name, (calls, pictures, reading) in cases.items():
        try:
            wrong[name] = f"taken: {arguments(taken(tmp_path, turns(*calls), pictures, **reading), 1)}"
        except RowProblem as problem:
            if problem.reason != "a call of an image that is not there" or "row 0 of" not in problem.message:
                wrong[name] = problem.message
    assert not wrong
    found = played(taken(tmp_path, turns(FIRST, (*absent[:2], "Error: there is no image 5")), [PHOTO, cut()]))
    assert (found.calls, found.meant, found.failures) == (2, 1, ())


def test_rows_whose_calls_cannot_be_moved_or_fail_are_refused_with_the_reason(tmp_path: Path) -> None:
    flat = np.full_like(PHOTO, 90)
    pixels = {"bbox_2d": inside("pixels")}
    unknown, fails = "coordinates in a frame that is not known", "a call that fails in the environment"
    cases: dict[str, tuple[list[dict[str, str]], list[Pixels], dict[str, Any], str]] = {
        "a point": (turns((MARK, {"point_2d": [10, 10]}, "<image>")), [PHOTO, PHOTO], {}, unknown),
        "a crop that is not compared": (turns((ZOOM, pixels, "<image>")), [PHOTO, PHOTO], {"crops": "any"}, unknown),
        "a flat picture": (turns((ZOOM, {"bbox_2d": [9, 9, 60, 60]}, "<image>")), [flat, flat[:90, :90]], {}, unknown),
        "two frames": (
            turns((ZOOM, pixels, "<image>"), (ZOOM, {"bbox_2d": inside("thousand"), "image_index": 0}, "<image>")),
            [PHOTO, cut(), cut()],
            {},
            unknown,
        ),
        "another picture": (
            turns((ZOOM, pixels, "<image>")),
            [PHOTO, cut((0, 0, 300, 200))],
            {},
            "a crop that is not the picture after it",
        ),
        "a size of another shape": (
            turns((ZOOM, {"bbox_2d": inside("resized")}, "<image>")),
            [PHOTO, cut()],
            {"call_space": "resized", "crops": "any", "row": {"size": [280, 420]}},
            "a resized image of another shape",
        ),
        "another frame than the key's": (
            turns((ZOOM, pixels, "<image>")),
            [PHOTO, cut()],
            {"call_space": "thousand"},
            "a crop that is not the picture after it",
        ),
        "beside the view": (
            turns((ZOOM, pixels, "<image>")), [PHOTO, cut()], {"call_space": "view", "crops": "any"}, fails
        ),
        "no such tool": (turns(("crop_image", pixels, "<image>")), [PHOTO, cut()], {}, fails),
        "a mark outside": (
            turns((MARK, {"point_2d": [700, 10]}, "<image>")), [PHOTO, PHOTO], {"call_space": "pixels"}, fails
        ),
        "a turn in the other sense": (
            turns(("image_rotate_tool", {"angle": 90}, "<image>")),
            [PHOTO, np.ascontiguousarray(np.rot90(PHOTO))],
            {},
            "a picture that its call does not make",
        ),
        "too small for the view": (
            turns((ZOOM, {"bbox_2d": [301, 201, 303, 203]}, "<image>")),
            [PHOTO, cut((301, 201, 303, 203))],
            {"call_space": "pixels", "crops": "any"},
            "a box that the view is too small for",
        ),
    }  # fmt: skip
    wrong: dict[str, str] = {}
    for name, (talk, pictures, reading, reason) in cases.items():
        try:
            wrong[name] = f"taken: {arguments(taken(tmp_path, talk, pictures, **reading))}"
        except RowProblem as problem:
            if problem.reason != reason or "row 0 of" not in problem.message:
                wrong[name] = problem.message
    assert not wrong


def test_calls_of_a_picture_that_exif_turns_need_a_crop_or_a_convention(tmp_path: Path) -> None:
    """Stored 400 x 600 with orientation 8 and seen upright, 600 x 400. A box of the stored pixels is another place."""
    exif = Image.Exif()
    exif[0x0112] = 8  # turned a quarter anticlockwise to be upright
    Image.fromarray(np.ascontiguousarray(np.rot90(PHOTO, -1))).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(cut()).save(tmp_path / "crop.png")

    def row(box: Sequence[float], **reading: Any) -> Any:
        talk = turns((ZOOM, {"bbox_2d": [*box]}, "<image>"))
        (tmp_path / "a.jsonl").write_text(json.dumps({"images": ["turned.png", "crop.png"], "conversations": talk}))
        item = generate(
            0, 0, "demo-train", path=str(tmp_path / "a.jsonl"), name="own", row="sharegpt", reading=reading or None
        )
        setting = DemonstrationSetup(native_card(), Teacher(), PROMPT, VIEWS)
        try:
            episode = asyncio.run(demonstrate(item, "imported", np.random.default_rng(0), setting))
        except RowProblem as problem:
            return problem.reason
        return arguments(episode)["bbox_2d"]

    unseen = {"call_space": "pixels", "crops": "any"}
    stored = (400 - 300, 150, 400 - 100, 450)
    assert row(BOX) == row(BOX, **unseen) == RIGHT  # the crop tells that it is upright
    assert row(stored) == "a crop that is not the picture after it"
    assert row(stored, **unseen) == "calls of a picture with an EXIF orientation"
    assert row(stored, **unseen, box_exif="upright") == [19, 32, 56, 94]


def test_calls_that_are_meant_to_fail_or_are_not_imitated_stay(tmp_path: Path) -> None:
    outside = {"bbox_2d": [700, 500, 800, 600]}
    talk = turns((ZOOM, outside, "Error: the box lies outside."), (ZOOM, {"bbox_2d": inside("pixels")}, "<image>"))
    found = played(taken(tmp_path, talk, [PHOTO, cut()]))
    assert (found.calls, found.meant, found.failures) == (2, 1, ())
    talk[1] |= {"loss": False}
    talk[2]["value"] = "Look again."
    found = played(taken(tmp_path, talk, [PHOTO, cut()]))
    assert (found.calls, found.meant, found.failures) == (2, 1, ())


def test_shares_stay_shares_where_the_environment_counts_in_them(tmp_path: Path) -> None:
    """Mini-o3's world; a row in pixels is moved to shares."""
    world = grounding_card(texts=Texts("", "<image>", "Error: {error}"))
    for space in ("unit", "pixels", "thousand"):
        call = json.dumps({"bbox_2d": inside(space), "source": "original_image"})
        talk = turns((ZOOM, {}, "<image>"))
        talk[1]["value"] = f"<grounding>{call}</grounding>"
        episode = taken(tmp_path, talk, [PHOTO, cut()], world)
        said = next(m["content"] for m in episode.messages if m["role"] == "assistant")
        assert said == '<grounding>{"bbox_2d": [0.25, 0.25, 0.75, 0.75], "source": "original_image"}</grounding>', space
        assert played(episode, world).failures == ()


def test_sft_plays_some_demonstrations_first_and_says_the_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A box in pixels of the original, as importers of other tools leave it, in a view of 112 x 84."""
    view = Image.fromarray(PHOTO).resize(VIEW)

    def demo(number: int, box: Sequence[float]) -> tuple[Demo, list[bytes]]:
        talk = turns((ZOOM, {"bbox_2d": list(box)}, "<image>"))
        roles = {"human": "user", "gpt": "assistant", "tool": "tool"}
        messages = tuple({"role": roles[turn["from"]], "content": turn["value"]} for turn in talk)
        return Demo(f"d{number}", messages, ()), [encode_png(np.asarray(view)), encode_png(cut())]

    def checked(name: str, boxes: Sequence[Sequence[float]], **keys: Any) -> str:
        records.write_demos(tmp_path / name / "train.parquet", (demo(n, box) for n, box in enumerate(boxes)))
        store = ImageStore(tmp_path / name / "images", VIEWS)
        config = sft.Config(
            data="demos:v1", model="m", optim=Optim(), epochs=1, rows_per_step=1, rows=None, first=sft.First(),
            checkpoint_every=9, checkpoint_beside=True, checkpoint_keep=1, checkpoint_best=None,
            checkpoint_best_mode="max", env=native_card, prompt={"style": "compact", "system": "{tools}",
            "tool_question": "{question}", "answer_question": "{question}", "observation": "<image>"}, **keys,
        )  # fmt: skip
        sft._require_playable(config, DemoSet(tmp_path / name, "train", store), store, ALONE)
        return capsys.readouterr().err

    said = checked("right", [RIGHT] * 3)
    assert "3 of 3 demonstrations" in said and "3 of 3 calls" in said
    wrong = [RIGHT, [300, 200, 450, 300], RIGHT]
    with pytest.raises(InputError, match=r"demos:v1.*2 of 3 calls") as found:
        checked("wrong", wrong)
    assert "d1" in str(found.value) and "sft.max_failed" in str(found.value)
    assert "d1" in checked("bounded", wrong, max_failed=0.5)
    assert not checked("unplayed", wrong, play_rows=0)
    assert "1 of 3 demonstrations" in checked("sampled", [RIGHT] * 3, play_rows=1)
