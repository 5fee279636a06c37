"""Drawn points and lines against the true ones, in original pixels of image 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcli import geometry
from vtcli.schema import Trajectory

NAMES = {
    "drawn": "per image with drawings: its index and what is drawn",
    "draw_truth": "what should be drawn",
    "draw_size": "width and height of image 0",
}
CLAIMED = ("drawn",)


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """``drawn``: one entry per image that carries drawings: its index and all primitives drawn on the way from image 0
    to it; ``draw_truth``: the true ones; ``draw_size``: W, H of image 0. All None without true primitives.

    Calls that drew on one state come in several turns, so they are collected along the chain of images."""
    truth = trajectory.sample.truth.get("primitives")
    if truth is None:
        return {"drawn": None, "draw_truth": None, "draw_size": None}
    images = trajectory.images
    carried: list[list[geometry.Primitive] | None] = []
    for index, ref in enumerate(images):
        if ref.parent is None:
            carried.append([] if index == 0 else None)
            continue
        before, matrix = carried[ref.parent], geometry.to_input(images, ref.parent)
        if before is None or matrix is None:
            carried.append(None)
            continue
        onto = geometry.after(matrix, geometry.from_view(images[ref.parent]))
        # Mapped to image 0 when it is drawn: later crops and turns then need no inverse.
        carried.append([*before, *geometry.drawn(ref.transform or {}, onto)])
    found = [{"image": index, "primitives": list(items)} for index, items in enumerate(carried) if items]
    size = [images[0].width, images[0].height]
    return {"drawn": found, "draw_truth": [dict(item) for item in truth], "draw_size": size}
