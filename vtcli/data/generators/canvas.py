"""Drawing on arrays: OpenCV for anti-aliased shapes, Pillow for text.

Fonts are matplotlib's, so the bytes do not depend on the fonts of the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vtcli.protocols import Pixels

Rgb = tuple[int, int, int]

COLOURS: dict[str, Rgb] = {
    "red": (220, 50, 47),
    "blue": (60, 110, 220),
    "green": (44, 150, 60),
    "orange": (245, 140, 20),
    "purple": (140, 70, 180),
    "cyan": (30, 170, 190),
    "pink": (230, 110, 180),
    "brown": (130, 85, 60),
    "grey": (110, 110, 110),
    "silver": (160, 160, 160),
    "yellow": (235, 205, 50),
}

SHIFT = 4  # OpenCV takes fixed-point coordinates: 4 bits behind the point
WEIGHTS = {"regular": "DejaVuSans.ttf", "bold": "DejaVuSans-Bold.ttf", "mono": "DejaVuSansMono.ttf"}

cv2.setNumThreads(1)  # the pool runs one process a core; threads inside would fight over them


@functools.lru_cache(maxsize=128)
def font(size_px: int, weight: str = "regular") -> ImageFont.FreeTypeFont:
    """A DejaVu font; weight is regular, bold or mono. Basic layout: the same with and without libraqm."""
    import matplotlib

    path = Path(matplotlib.get_data_path(), "fonts", "ttf", WEIGHTS[weight])
    return ImageFont.truetype(str(path), size_px, layout_engine=ImageFont.Layout.BASIC)


@functools.lru_cache(maxsize=64)
def capital_font(height_px: int, weight: str = "bold") -> ImageFont.FreeTypeFont:
    """The largest font whose capital H is at most ``height_px`` tall."""
    for size_px in range(2 * height_px, 3, -1):
        _, top, _, bottom = font(size_px, weight).getbbox("H")
        if bottom - top <= height_px:
            return font(size_px, weight)
    return font(4, weight)


def blank(width: int, height: int, colour: Rgb = (255, 255, 255)) -> Pixels:
    pixels = np.empty((height, width * 3), dtype=np.uint8)
    pixels[:] = np.tile(np.array(colour, dtype=np.uint8), width)  # row by row: six times as fast as pixel by pixel
    return pixels.reshape(height, width, 3)


def light(pixels: Pixels, strength: float) -> None:
    """Darken red from left to right and blue from top to bottom, by up to ``strength`` of 255, like a coloured lamp. So
    a small model that knows only relative positions can tell from a patch where in the image it is."""
    height, width = pixels.shape[:2]
    cv2.subtract(pixels, _shade(height, width, strength), dst=pixels)  # stops at 0


@functools.lru_cache(maxsize=8)
def _shade(height: int, width: int, strength: float) -> Pixels:
    # Red and blue only: green distinguishes the frames of tags (``zoom.FRAMES``) under any light.
    shade = np.zeros((height, width, 3), dtype=np.uint8)
    shade[:, :, 0] = np.linspace(0, strength, width).round()[None, :]
    shade[:, :, 2] = np.linspace(0, strength, height).round()[:, None]
    return shade


def disc(pixels: Pixels, centre: Sequence[float], radius: float, colour: Rgb, outline: Rgb | None = None) -> None:
    """A filled circle around a subpixel centre, where pixel (i, j) covers the point (i + 0.5, j + 0.5)."""
    at = fixed(centre)
    cv2.circle(pixels, at, round(radius * (1 << SHIFT)), colour, -1, cv2.LINE_AA, SHIFT)
    if outline is not None:
        cv2.circle(pixels, at, round(radius * (1 << SHIFT)), outline, 1, cv2.LINE_AA, SHIFT)


def ring(pixels: Pixels, centre: Sequence[float], radius: float, colour: Rgb, thickness: int) -> None:
    cv2.circle(pixels, fixed(centre), round(radius * (1 << SHIFT)), colour, thickness, cv2.LINE_AA, SHIFT)


def polygon(pixels: Pixels, corners: Sequence[Sequence[float]], colour: Rgb) -> None:
    cv2.fillPoly(pixels, [np.array([fixed(c) for c in corners], np.int32)], colour, cv2.LINE_AA, SHIFT)


def polyline(pixels: Pixels, corners: Sequence[Sequence[float]], colour: Rgb, thickness: int = 1) -> None:
    path = np.array([fixed(c) for c in corners], np.int32)
    cv2.polylines(pixels, [path], isClosed=False, color=colour, thickness=thickness, lineType=cv2.LINE_AA, shift=SHIFT)


def rectangle(pixels: Pixels, box: Sequence[int], colour: Rgb) -> None:
    """Fills ``(x1, y1, x2, y2)``, right and lower edge exclusive."""
    x1, y1, x2, y2 = box
    pixels[max(y1, 0) : y2, max(x1, 0) : x2] = colour


def fixed(point: Sequence[float]) -> tuple[int, int]:
    """Continuous coordinates to OpenCV's fixed-point ones, whose integers are the centres of pixels."""
    return round((point[0] - 0.5) * (1 << SHIFT)), round((point[1] - 0.5) * (1 << SHIFT))


class Pen:
    """Writes text on an array: open it after the shapes, take ``pixels`` when done."""

    def __init__(self, pixels: Pixels) -> None:
        self._image = Image.fromarray(pixels)
        self._draw = ImageDraw.Draw(self._image)

    def text(
        self, at: Sequence[float], text: str, face: ImageFont.FreeTypeFont, colour: Rgb = (0, 0, 0), anchor: str = "mm"
    ) -> None:
        """``anchor`` as in Pillow: first letter l, m, r; second a, m, s (baseline), d."""
        self._draw.text((round(at[0]), round(at[1])), text, font=face, fill=colour, anchor=anchor)

    def vertical(self, at: Sequence[float], text: str, face: ImageFont.FreeTypeFont, colour: Rgb = (0, 0, 0)) -> None:
        """Text that reads upwards, centred at ``at``."""
        left, top, right, bottom = face.getbbox(text)
        size = (int(right - left) + 2, int(bottom - top) + 2)
        mask = Image.new("L", size, 0)
        ImageDraw.Draw(mask).text((1 - left, 1 - top), text, font=face, fill=255)
        mask = mask.transpose(Image.Transpose.ROTATE_90)
        corner = (round(at[0] - mask.width / 2), round(at[1] - mask.height / 2))
        self._image.paste(colour, (*corner, corner[0] + mask.width, corner[1] + mask.height), mask)

    @property
    def pixels(self) -> Pixels:
        return np.array(self._image, dtype=np.uint8)


def png(pixels: Pixels, level: int = 6) -> bytes:
    """The array as PNG bytes; zlib ``level`` 0 to 9. Unfiltered: for flat colours smaller and faster than filtered."""
    flags = [cv2.IMWRITE_PNG_COMPRESSION, level, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_DEFAULT]
    flags += [cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_NONE]
    done, data = cv2.imencode(".png", pixels[:, :, ::-1], flags)
    if not done:
        raise ValueError(f"cannot encode an array of shape {pixels.shape} as PNG")
    return data.tobytes()
