"""Moving shapes and dots: bytes that are the same everywhere, truth that the pixels confirm, answers that nothing but
the asked frame, or nothing but code, gives away."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from cases import each_case

from vtcli.config.binding import bind
from vtcli.data import sheet
from vtcli.data.generators import canvas, dots, film, moving
from vtcli.data.generators.film import Clip
from vtcli.data.generators.item import Item
from vtcli.data.teachers.scripted import Teacher
from vtcli.errors import ConfigError, InputError
from vtcli.sandbox.video.reader import VideoReader
from vtcli.schema import Sample
from vtcli.signals.rules import score
from vtcli.store.images import ImageStore

CONF = Path(__file__).parents[2] / "conf" / "data"


def tiny(name: str, task: str) -> Any:
    return bind(yaml.safe_load((CONF / f"{name}.yaml").read_text())["tasks"][task]["generate"], task)


MOVING, DOTS = tiny("pyvision_video_tiny", "moving"), tiny("codedance_tiny", "dots")


def videos(count: int, **changes: Any) -> list[Item]:
    size = replace(MOVING.keywords["size"], **changes)
    return [moving.generate(0, i, "train", size) for i in range(count)]


def images(count: int) -> list[Item]:
    return [DOTS(seed=0, item=i, split="train") for i in range(count)]


# ---------------------------------------------------------------- files


def test_a_frame_that_code_fetches_is_the_picture_that_was_drawn(tmp_path: Path) -> None:
    for rate in (2, 4, 5, 8):
        clip = Clip(np.random.default_rng(rate).integers(0, 256, (26, 96, 112, 3), dtype=np.uint8), rate)
        path = tmp_path / film.NAME
        path.write_bytes(film.encode(clip))
        reader, ref = VideoReader(str(path)), clip.ref()
        assert (len(reader), reader.get_avg_fps(), reader.size) == (ref.frames, ref.fps, (ref.width, ref.height))
        for number in (25, 0, 13):
            assert np.array_equal(reader[number], clip.frames[number])
            assert reader.get_frame_timestamp(number)[0] == pytest.approx(number / rate)


def test_a_rate_that_the_container_would_round_is_refused() -> None:
    with pytest.raises(ConfigError, match="divisor of 1000"):
        film.encode(Clip(np.zeros((2, 32, 32, 3), np.uint8), 3))


PROCESS = """
import hashlib, sys
sys.path.insert(0, {root!r})
from vtcli.data.generators import canvas, dots, film, moving
a, b = moving.generate(5, 2, "test", moving.MovingSize(lighting=80)), dots.generate(5, 2, "test", dots.DotsSize())
print(hashlib.sha256(film.encode(a.clip)).hexdigest(), hashlib.sha256(canvas.png(b.pixels)).hexdigest())
"""


def test_another_process_makes_the_same_bytes() -> None:
    code = PROCESS.format(root=str(Path(__file__).parents[2]))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    clip = moving.generate(5, 2, "test", moving.MovingSize(lighting=80)).clip
    assert clip is not None
    here = hashlib.sha256(film.encode(clip)).hexdigest()
    picture = dots.generate(5, 2, "test", dots.DotsSize()).pixels
    assert found.split() == [here, hashlib.sha256(canvas.png(picture)).hexdigest()]


def test_a_file_has_the_same_bytes_on_every_machine() -> None:
    frames = (np.arange(24 * 96 * 112 * 3) // 997 % 256).astype(np.uint8).reshape(24, 96, 112, 3)
    assert (
        hashlib.sha256(film.encode(Clip(frames, 4))).hexdigest()
        == "d5051ba3425aae99a4bf0c151a2726780f1c3342c078d126fb217f82f37aee47"
    )


def test_no_frame_of_a_video_can_get_into_a_prompt(tmp_path: Path) -> None:
    (item,) = videos(1)
    assert item.pictures == () and item.clip is not None
    with pytest.raises(InputError):
        ImageStore(tmp_path).add(item.pixels)


# ---------------------------------------------------------------- moving shapes


def middle(pixels: np.ndarray, colour: str) -> tuple[float, float]:
    """Of the box around a colour's pixels."""
    mask = (np.abs(pixels.astype(int) - canvas.COLOURS[colour]) <= 12).all(axis=2)
    (top, bottom), (left, right) = ((int(v.min()), int(v.max()) + 1) for v in np.nonzero(mask))
    return (left + right) / 2, (top + bottom) / 2


def test_the_shape_is_where_the_truth_says_in_every_frame_that_shows_the_answer() -> None:
    for item in videos(25, lighting=0.0):
        assert item.clip is not None
        truth, asked = item.truth, item.truth["shapes"][0]
        assert truth["frames"] == [4 * truth["second"] + k for k in range(3)] and truth["frame"] == truth["frames"][0]
        assert f"second {truth['second']}?" in item.question
        for second in range(6):
            colour, gliding = asked["colours"][second], 4 * second + 3
            for number in range(4 * second, gliding):
                x, y = middle(item.clip.frames[number], colour)
                assert (x, y) == pytest.approx(asked["centres"][second], abs=1.5)
                seen = f"{'top' if y < 56 else 'bottom'}-{'left' if x < 56 else 'right'}"
                assert seen == moving.answer_at(truth, number)
                assert seen == item.answer or number not in truth["frames"]
            half_way = np.mean(asked["centres"][second : second + 2], axis=0)  # in the last quarter of a second
            assert middle(item.clip.frames[gliding], colour) == pytest.approx(half_way, abs=1.5)


def test_shapes_move_and_no_second_tells_of_another() -> None:
    found = videos(200)
    answers = Counter(item.answer for item in found)
    assert set(answers) == set(moving.PLACES[2]) and max(answers.values()) < 200 * 0.38  # 0.25 expected
    other = [moving.answer_at(item.truth, (item.truth["frame"] + 4) % 24) == item.answer for item in found]
    assert abs(float(np.mean(other)) - 0.25) < 0.125  # four standard errors
    assert Counter(item.truth["second"] for item in found).keys() == set(range(6))


def test_colours_and_several_shapes_can_be_asked_for() -> None:
    for item in videos(12, kinds=("colour",)):
        shape = item.truth["shapes"][0]
        assert item.question == f"Which colour has the {shape['shape']} at second {item.truth['second']}?"
        assert item.answer == shape["colours"][item.truth["second"]] and item.answer in item.truth["choices"]
        assert moving.answer_at(item.truth, item.truth["frame"]) == item.answer
    for item in videos(12, shapes=(3, 3), grid=3, side=(16, 20)):
        assert (
            len({s["shape"] for s in item.truth["shapes"]}) == len({s["colours"][0] for s in item.truth["shapes"]}) == 3
        )
        for second in range(6):
            assert len({s["places"][second] for s in item.truth["shapes"]}) == 3


@each_case(
    ("change", "words"),
    [({"grid": 4}, "2 or 3"), ({"side": (60, 70)}, "do not fit"), ({"kinds": ("speed",)}, "place, colour"),
     ({"shapes": (1, 9)}, "occur twice"), ({"seconds": 1}, "at least 2")],
)  # fmt: skip
def test_videos_that_cannot_be_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        videos(1, **change)


# ---------------------------------------------------------------- dots


def counted(pixels: np.ndarray, channel: int) -> int:
    """What code does: the connected components above the channel's median."""
    values = pixels[:, :, channel].astype(int)
    return cv2.connectedComponents((values > np.median(values) + dots.ABOVE).astype(np.uint8))[0] - 1


def test_code_counts_every_colour_of_every_item_exactly() -> None:
    for item in images(80):
        code = item.truth["code"]
        assert counted(item.pixels, code["arguments"]["channel"]) == item.truth["value"][0] == int(item.answer)
        assert [counted(item.pixels, i) for i in range(3)] == [item.truth["tally"][name] for name in dots.CHANNELS]
        assert code["prints"] == item.answer and item.question == f"How many {item.truth['colour']} dots are there?"


def test_easy_items_are_few_and_large_and_hard_ones_many_small_and_faint() -> None:
    found = images(240)
    kinds = Counter(item.truth["difficulty"] for item in found)
    assert abs(kinds["hard"] - 120) < 31  # four standard errors
    for difficulty, counts in (("easy", {1, 2, 3}), ("hard", {4, 5, 6, 7, 8, 9})):
        some = [item for item in found if item.truth["difficulty"] == difficulty]
        answers = Counter(item.truth["value"][0] for item in some)
        assert set(answers) == counts and max(answers.values()) < 1.8 * len(some) / len(counts)
        for item in some:
            ink = np.abs(item.pixels.astype(int) - np.median(item.pixels, axis=(0, 1))).max(axis=2)
            area = (ink > dots.ABOVE).sum() / len(item.truth["dots"])
            assert (area > 300) if difficulty == "easy" else (4 < area < 30)
            assert (ink.max() > 80) == (difficulty == "easy")


def test_other_colours_say_nothing_of_the_count() -> None:
    """Neither the number of all dots nor of those of another colour."""
    hard = [item for item in images(400) if item.truth["difficulty"] == "hard"]
    asked = np.array([item.truth["value"][0] for item in hard])
    rest = np.array([len(item.truth["dots"]) for item in hard]) - asked
    assert abs(float(np.corrcoef(asked, rest)[0, 1])) < 0.28  # four standard errors


def test_counts_are_scored_as_counts() -> None:
    item = next(item for item in images(60) if item.answer == "6")
    sample = item.sample("answer", "test")
    assert score(sample, "6") == (1.0, 1)
    assert score(sample, "about 3") == (pytest.approx(1 - 3 / 9), 0)


def test_difficulty_may_be_a_scale_on_which_code_is_always_right() -> None:
    easy, hard = dots.DotLook((1, 5), (0, 4), (8, 9), 90), dots.DotLook((1, 5), (0, 4), (1.8, 2.4), 32)
    items = [dots.generate(0, n, "train", dots.DotsSize(levels=5, easy_dots=easy, hard_dots=hard)) for n in range(80)]
    sizes: dict[str, list[float]] = {}
    for item in items:
        assert [counted(item.pixels, i) for i in range(3)] == [item.truth["tally"][name] for name in dots.CHANNELS]
        sizes.setdefault(item.truth["difficulty"], []).extend(dot["radius"] for dot in item.truth["dots"])
    assert sorted(sizes) == ["0.00", "0.25", "0.50", "0.75", "1.00"]
    means = [float(np.mean(sizes[level])) for level in sorted(sizes)]
    assert means == sorted(means, reverse=True)
    assert means[2] == pytest.approx((8.5 + 2.1) / 2, abs=0.4)
    rng, teacher = np.random.default_rng(0), Teacher(direct=1.0)
    told = {level: [] for level in sizes}  # what a look tells
    for _ in range(40):
        for item in items:
            look = dots.act(item, rng, replace(teacher, skill=-1.0), (1.0, 1.0))
            told[item.truth["difficulty"]].append(look.answer == item.answer)
    shares = [float(np.mean(told[level])) for level in sorted(told)]
    assert shares == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2], abs=0.06)  # one of five counts is right by chance


def test_dots_that_code_could_not_count_are_refused() -> None:
    faint = dots.DotsSize(hard=1.0, hard_dots=dots.DotLook((4, 9), (0, 0), (2, 2), 20))
    with pytest.raises(ConfigError, match="contrast of 20"):
        dots.generate(0, 0, "train", faint)
    crowded = dots.DotsSize(hard=0.0, easy_dots=dots.DotLook((40, 40), (0, 0), (11, 13), 90))
    with pytest.raises(ConfigError, match="do not fit"):
        dots.generate(0, 0, "train", crowded)


# ---------------------------------------------------------------- both


def test_tasks_without_a_tool_form_say_so() -> None:
    for item in (*videos(1), *images(1)):
        assert isinstance(item.sample("answer", "test"), Sample)
        with pytest.raises(ConfigError, match=r"forms: \[answer\]"):
            item.sample("tool", "test")


def test_truth_is_json_and_items_depend_on_seed_split_and_number_only() -> None:
    for make in (MOVING, DOTS):
        first = make(seed=3, item=7, split="train")
        assert json.loads(json.dumps(first.truth)) == first.truth
        again, *others = (make(seed=s, item=i, split=p) for s, i, p in
                          ((3, 7, "train"), (4, 7, "train"), (3, 8, "train"), (3, 7, "test")))  # fmt: skip
        assert again.digest == first.digest and again.truth == first.truth
        assert len({first.digest, *(other.digest for other in others)}) == 4


def test_the_contact_sheet_shows_a_frame_of_every_second_with_the_asked_one_framed() -> None:
    (item,) = videos(1)
    assert item.clip is not None
    board = sheet.storyboard(item.clip, item.truth["frame"])
    assert board.shape == (2 * 114, 3 * 114, 3)
    row, column = divmod(item.truth["second"], 3)
    assert tuple(board[114 * row, 114 * column]) == sheet.TRUTH
    assert (board == np.array(sheet.TRUTH)).all(axis=2).sum() == 2 * 114 + 2 * 112
    assert np.array_equal(board[1:113, 1:113], item.clip.frames[0])
    for shown in (sheet.cell(item), sheet.cell(images(1)[0])):
        assert max(shown.pixels.shape) <= sheet.CELL and not any("tool:" in line for line in shown.lines)
