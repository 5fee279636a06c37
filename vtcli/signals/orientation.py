"""The orientation of every image of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcli import geometry
from vtcli.schema import Trajectory

NAMES = {
    "orientations": 'per image one of 8 orientations; "none" is upright',
}
CLAIMED = ("orientations",)


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """``orientations``: per image one of the 8 names of ``geometry.ORIENTATIONS``, "none" when upright. An entry is
    None if image 0 is not its origin. The whole is None when the truth has no ``transform`` of image 0."""
    start = trajectory.sample.truth.get("transform")
    if start is None:
        return {"orientations": None}
    found: list[str | None] = []
    for index, ref in enumerate(trajectory.images):
        if ref.parent is None:
            found.append(str(start) if index == 0 else None)
        else:
            # Parents come before their children, so one pass composes whole chains.
            before, change = found[ref.parent], geometry.change(ref, trajectory.images[ref.parent])
            found.append(None if before is None or change is None else geometry.compose(before, change))
    return {"orientations": found}
