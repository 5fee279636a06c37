"""PIL's images as arrays: the same pixels, however PIL keeps them, in memory of their own."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from vtcli.sandbox.harness import pixels
from vtcli.sandbox.protocol import arena


def dice(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (1, 700), (700, 1), (672, 504), (5000, 4000)])
def test_the_pixels_are_those_that_pil_tells(size: tuple[int, int]) -> None:
    """The largest one lies in several blocks, which PIL does not export."""
    expected = dice(*size)
    image = Image.fromarray(expected)
    if size == (5000, 4000):
        with pytest.raises(ValueError, match="contiguous"):
            image.__arrow_c_array__()
    found = pixels.of_pil(image)
    assert found.dtype == np.uint8 and found.flags.c_contiguous
    assert np.array_equal(found, expected)


def test_an_image_on_an_input_pictures_memory_is_read_like_any_other() -> None:
    expected = dice(60, 50)
    fd = arena.sealed_picture(expected)
    image = pixels.image_of(arena.seen(arena.placed(fd, 50, 60), 50, 60))
    os.close(fd)
    assert np.array_equal(pixels.of_pil(image), expected)
    assert np.array_equal(pixels.of_pil(image.crop((5, 6, 40, 30))), expected[6:30, 5:40])


def test_what_is_painted_later_is_not_in_the_pixels() -> None:
    expected = dice(64, 48)
    image = Image.fromarray(expected)
    found = pixels.of_pil(image)
    image.paste((0, 0, 0), (0, 0, 64, 48))
    image.close()
    assert np.array_equal(found, expected)


def test_transparency_is_dropped() -> None:
    expected = dice(20, 10)
    image = Image.fromarray(expected).convert("RGBA")
    image.putalpha(7)
    assert np.array_equal(pixels.of_pil(image), expected)
