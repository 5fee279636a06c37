"""PIL's images as arrays: the same pixels in memory of their own."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vtcli.sandbox.harness import pixels


def dice(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)


def test_the_pixels_are_those_that_pil_tells(subtests: pytest.Subtests) -> None:
    for size in [(1, 1), (3, 2), (1, 700), (700, 1), (672, 504)]:
        with subtests.test(str(size)):
            expected = dice(*size)
            found = pixels.of_pil(Image.fromarray(expected))
            assert found.dtype == np.uint8 and found.flags.c_contiguous
            assert np.array_equal(found, expected)


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
