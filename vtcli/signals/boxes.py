"""Zoomed boxes against the true ones, in original pixels of image 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcli import geometry
from vtcli.schema import ImageRef, Trajectory
from vtcli.signals import code

NAMES = {
    "zooms": "per zoom: image, cut box, areas tp, fp, fn against each true box",
    "zoom_labels": "labels of the true boxes",
}
CLAIMED = ("zooms",)


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """``zooms``: one entry per image that a zoom of (a derivative of) image 0 made, or a verified crop of code. An
    entry has its index, the cut box, and the areas tp, fp, fn against each true box in order. ``zoom_labels``: their
    labels. None without true boxes."""
    truth = trajectory.sample.truth.get("boxes")
    if truth is None:
        return {"zooms": None, "zoom_labels": None}
    zooms: list[dict[str, Any]] = []
    for index, ref in enumerate(trajectory.images):
        # An image of code has a parent only once the host verified it, so an unverified crop counts for nothing.
        if ref.parent is None or not _cut(ref):
            continue
        box = geometry.shown_box(trajectory.images, index)
        if box is not None:
            areas = [geometry.areas(box, true["box"])._asdict() for true in truth]
            zooms.append({"image": index, "box": list(box), "areas": areas})
    return {"zooms": zooms, "zoom_labels": [true.get("label") for true in truth]}


def _cut(ref: ImageRef) -> bool:
    """True if a part of the parent was cut out; a chain of code counts with one crop in it."""
    transform = ref.transform or {}
    return transform.get("op") == "zoom" or "crop" in map(code.canonical, code.chain_of(transform))
