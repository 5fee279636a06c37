"""A crop of an imported trajectory is the picture that follows it: what is compared, how closely, and what is said."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from cases import each_case
from PIL import Image
from sklearn.datasets import load_sample_images

from vtcli.data.importers import crops
from vtcli.protocols import Pixels

PHOTOS: list[Pixels] = load_sample_images().images
BOX = (120, 80, 360, 240)


def cut(pixels: Pixels, box: tuple[int, ...]) -> Pixels:
    return np.ascontiguousarray(pixels[box[1] : box[3], box[0] : box[2]])


def spoilt(pixels: Pixels, quality: int, scale: float) -> Pixels:
    image = Image.fromarray(pixels)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


@each_case("photo", PHOTOS)
def test_the_tolerance_lets_jpeg_and_resizing_pass_and_no_other_place(photo: Pixels) -> None:
    """The figures that the module states."""
    right = cut(photo, BOX)
    spoils = [(quality, scale) for quality in (30, 90) for scale in (0.4, 1.0, 1.7)]
    assert max(crops.difference(right, spoilt(right, *how)) for how in spoils) < 3
    for across, down in ((60, 0), (0, 40), (-60, -40)):
        other = cut(photo, (BOX[0] + across, BOX[1] + down, BOX[2] + across, BOX[3] + down))
        assert crops.difference(right, other) > 10
        assert not crops.shown(BOX, [photo], spoilt(other, 90, 0.5))
    assert all(crops.shown(BOX, [PHOTOS[1], photo], spoilt(right, *how)) for how in spoils)
    height, width = photo.shape[:2]
    unit = (BOX[0] / width, BOX[1] / height, BOX[2] / width, BOX[3] / height)
    assert crops.shown(unit, [photo], right) and crops.shown(tuple(1000 * v for v in unit), [photo], right)  # type: ignore[arg-type]
    assert not crops.shown(BOX, [photo], cut(photo, (120, 80, 360, 320)))  # another shape


@each_case(
    ("code", "box"),
    [
        ("image.crop((1, 2, 30, 40)).save('a.png')", (1, 2, 30, 40)),
        ("box = [1, 2, 30, 40]\nimage.crop(box)", (1, 2, 30, 40)),
        ("x1, y1, x2, y2 = 1, 2, 30, 40\nimage.crop((x1, y1, x2 + 5, y2 * 2))", (1, 2, 35, 80)),
        ("image.crop(box=(1, 2, 30, 40)).resize((100, 100))", (1, 2, 30, 40)),
        ("x = 1\nx = 5\nimage.crop((x, 2, 30, 40))", None),  # which of them, only a run tells
        ("image.crop((1, 2, 30, 40)).rotate(90)", None),
        ("image.crop((1, 2, 3, 4))\nimage.crop((1, 2, 30, 40))", None),
        ("image.crop((w / 2, 2, 30, 40))", None),
        ("image.crop((1 / 0, 2, 30, 40))", None),
        ("image.crop((", None),
        ("print(1)", None),
    ],
)
def test_the_box_of_a_crop_is_read_off_code(code: str, box: Any) -> None:
    assert crops.asked_box({"code": code}) == box
