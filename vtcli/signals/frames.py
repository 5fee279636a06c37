"""Frames of a video that the images of a trajectory show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from vtcli.schema import Trajectory

NAMES = {
    "frames": "per image of a video's frames: its index, the frames, verified",
    "frame_shown": "1 if an image shows a frame that tells the answer",
}


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """Measures ``frames`` and ``frame_shown``.

    ``frames`` has an entry per image that code made from frames of a video: its index, the frames' ``indices`` in
    reading order, and ``verified`` (``sandbox.types.OutputImage``). ``frame_shown`` is 1 if an image shows one of the
    frames that tell the answer (``truth.frames``), else 0.

    The sandbox records the frames that code read, but the host decodes no video, so ``verified`` is None. The code's
    claim serves for counts and inspection, not for rewards. Both signals are None if the truth names no frames.
    """
    wanted = trajectory.sample.truth.get("frames")
    if wanted is None:
        return {"frames": None, "frame_shown": None}
    shown: list[dict[str, Any]] = []
    for index, ref in enumerate(trajectory.images):
        indices = [i for step in (ref.transform or {}).get("operations", ()) for i in _indices(step)]
        if indices:
            shown.append({"image": index, "indices": indices, "verified": (ref.transform or {}).get("verified")})
    hit = any(set(entry["indices"]) & set(wanted) for entry in shown)
    return {"frames": shown, "frame_shown": int(hit)}


def _indices(operation: Mapping[str, Any]) -> list[int]:
    """Frame indices of an operation that read frames."""
    if operation.get("name") != "frames":
        return []
    found = (operation.get("arguments") or {}).get("indices")
    return [i for i in cast("list[Any]", found) if type(i) is int] if isinstance(found, list) else []
