"""A contact sheet: samples of every task in a grid with their ground truth drawn on them, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vtcli.data.generators import canvas
from vtcli.data.generators.film import Clip, Footage
from vtcli.data.generators.item import Item
from vtcli.data.generators.rotflip import moved
from vtcli.protocols import Pixels

CELL = 300  # pixels, width and height of the picture's room
LINE = 15  # pixels, height of a line of text
TRUTH = (255, 0, 200)  # magenta: no generator uses it


@dataclass(frozen=True, slots=True)
class SheetCell:
    """One picture with lines of text below it."""

    pixels: Pixels
    lines: tuple[str, ...]


def cell(item: Item) -> SheetCell:
    """An item with its truth drawn on it, its id, its questions with their answers; of a video a frame of every second,
    the asked one framed."""
    picture = item.pixels if item.clip is None else storyboard(item.clip, item.truth.get("frame"))
    shown, scale = _fitted(picture)
    _overlay(shown, item, scale)
    height, width = picture.shape[:2]
    if item.clip is None:
        lines = [f"{item.id}  {width}x{height}"]
    else:
        said = item.clip.ref()
        lines = [f"{item.id}  {said.width}x{said.height}"]
        framed = "; framed: the asked one" if "frame" in item.truth else ""
        lines += _wrapped(f"{said.frames} frames, {said.fps:.4g} a second{framed}")
    lines += _wrapped(f"answer: {item.question} -> {item.answer}")
    if item.tool_question:
        lines += _wrapped(f"tool: {item.tool_question} -> {item.tool_answer}")
    if "corner" in item.truth:
        lines += _wrapped(f"shown {item.truth['transform']}; ring: where the stamp's corner is now")
    return SheetCell(shown, tuple(lines))


def captioned(pixels: Pixels, lines: Sequence[str]) -> SheetCell:
    """Any picture with lines of text below it."""
    return SheetCell(_fitted(pixels)[0], tuple(part for line in lines for part in _wrapped(line)))


def storyboard(clip: Clip | Footage, framed: int | None = None, columns: int = 3) -> Pixels:
    """Stills in rows; ``framed``: the number of one with the truth's colour around it."""
    stills = clip.stills()
    height, width = next((pixels.shape[:2] for pixels in stills.values()), (1, 1))
    board = canvas.blank((width + 2) * columns, (height + 2) * max(-(-len(stills) // columns), 1))
    for i, (number, pixels) in enumerate(stills.items()):
        x, y = (width + 2) * (i % columns), (height + 2) * (i // columns)
        if number == framed:
            canvas.rectangle(board, (x, y, x + width + 2, y + height + 2), TRUTH)
        board[y + 1 : y + 1 + height, x + 1 : x + 1 + width] = pixels
    return board


def episode(
    name: str, messages: Sequence[Mapping[str, str]], images: Sequence[Pixels], most: int = 4
) -> list[SheetCell]:
    """Returns a demonstration as a row of cells: each image with the messages from its own up to the next image."""
    texts: list[list[str]] = []
    for message in messages:
        shows = message["content"].count("<image>")
        texts += [[] for _ in range(shows)]
        text = message["content"].replace("<image>", "").strip()
        if texts and message["role"] != "system":
            texts[-1] += _wrapped(f"{message['role']}: {text}")
    shown = [_fitted(pixels)[0] for pixels in images[:most]]
    return [SheetCell(pixels, (name if k == 0 else "", *texts[k])) for k, pixels in enumerate(shown)]


def packed(strips: Sequence[list[SheetCell]], columns: int = 6) -> list[list[SheetCell]]:
    """Short strips side by side in rows of at most ``columns`` cells, in order."""
    rows: list[list[SheetCell]] = [[]]
    for strip in strips:
        if rows[-1] and len(rows[-1]) + len(strip) > columns:
            rows.append([])
        rows[-1] += strip
    return [row for row in rows if row]  # a small shard has none


def sheet(rows: Sequence[Sequence[SheetCell]]) -> Pixels:
    """The cells in rows; a row is as tall as its longest text."""
    columns = max((len(row) for row in rows), default=1)
    strips: list[Pixels] = []
    for row in rows:
        text = LINE * max(len(c.lines) for c in row) + 16
        strip = canvas.blank((CELL + 12) * columns + 12, CELL + text + 12, (238, 238, 238))
        for i, one in enumerate(row):
            x, (height, width) = 12 + i * (CELL + 12), one.pixels.shape[:2]
            left, top = x + (CELL - width) // 2, 12 + (CELL - height) // 2
            strip[top : top + height, left : left + width] = one.pixels
        pen = canvas.Pen(strip)
        for i, one in enumerate(row):
            for k, line in enumerate(one.lines):
                face = canvas.font(11, "bold" if k == 0 else "regular")
                pen.text((12 + i * (CELL + 12), CELL + 16 + k * LINE), line, face, (20, 20, 20), "la")
        strips.append(pen.pixels)
    return np.concatenate(strips or [canvas.blank(CELL, LINE)], axis=0)


def _fitted(pixels: Pixels) -> tuple[Pixels, float]:
    """The picture at the size of a cell, and the factor: whole-numbered when it grows, so that pixels stay squares."""
    scale = CELL / max(pixels.shape[:2])
    scale = float(int(scale)) if scale > 1 else scale
    size = (round(pixels.shape[1] * scale), round(pixels.shape[0] * scale))
    how = cv2.INTER_NEAREST if scale > 1 else cv2.INTER_AREA
    return np.array(cv2.resize(pixels, size, interpolation=how), dtype=np.uint8), scale


def _overlay(shown: Pixels, item: Item, scale: float) -> None:
    height, width = shown.shape[:2]
    for box in item.truth.get("boxes", ()):
        x1, y1, x2, y2 = (v * scale for v in box["box"])
        canvas.polyline(shown, [(x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1)], TRUTH, 2)
    for primitive in item.truth.get("primitives", ()):
        if primitive["type"] == "point":
            canvas.ring(shown, (primitive["x"] * scale, primitive["y"] * scale), 9, TRUTH, 2)
        elif primitive["type"] == "vline":
            canvas.polyline(shown, [(primitive["x"] * scale, 0), (primitive["x"] * scale, height)], TRUTH, 1)
        else:
            canvas.polyline(shown, [(0, primitive["y"] * scale), (width, primitive["y"] * scale)], TRUTH, 1)
    for dot in item.truth.get("dots", ()):
        if dot["colour"] == item.truth["colour"]:
            canvas.ring(shown, (dot["x"] * scale, dot["y"] * scale), dot["radius"] * scale + 3, TRUTH, 2)
    if "corner" in item.truth:
        vertical, horizontal = moved(item.truth["corner"], item.truth["transform"]).split("-")
        inset = 12
        at = (inset if horizontal == "left" else width - inset, inset if vertical == "top" else height - inset)
        canvas.ring(shown, at, 8, TRUTH, 2)


def _wrapped(text: str, width: int = CELL) -> list[str]:
    """The text in lines that fit into a cell; code's own lines are kept."""
    return [fitting for own in text.splitlines() for fitting in _filled(own, width)]


def _filled(text: str, width: int) -> list[str]:
    face = canvas.font(11)
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and face.getlength(longer) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line]
