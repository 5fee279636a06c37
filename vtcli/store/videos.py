"""Video files of an artifact, named by their content and stored beside its Parquet files.

A row names its video as ``videos/ab/<sha256>.mkv``, relative to the artifact's folder. A loaded ``Sample`` has the
absolute path on this machine. A stored rollout has the name again (``portable``), so it names the video of the dataset
on every machine. The sandbox decodes videos, and an evaluation that shows uniform frames (``eval.frames``).
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtcli.errors import InputError
from vtcli.schema import Scored, VideoRef
from vtcli.store import disk

FOLDER = "videos"
_ADDRESS = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.[a-z0-9]{{1,8}}")
_NUMBERS = ("size", "width", "height", "frames", "frames_per_s")


def keep(folder: Path, ref: VideoRef, data: bytes) -> dict[str, Any]:
    """Writes a video's bytes below ``folder``, once for equal bytes, and returns its entry in a row.

    Of ``ref.path`` only the ending is used.

    Raises:
        InputError: a video without bytes, an invalid ending, an impossible width, height, rate or number of frames, or
        disk trouble.
    """
    sha = hashlib.sha256(data).hexdigest()
    entry: dict[str, Any] = {
        "video": f"{FOLDER}/{sha[:2]}/{sha}{Path(ref.path).suffix.lower()}",
        "size": len(data),
        "width": ref.width,
        "height": ref.height,
        "frames": ref.frames,
        "frames_per_s": ref.fps,
    }
    if problem := _malformed(entry):
        raise InputError(f"The video {ref.path} cannot be kept in {folder}: {problem}.")
    path = folder / entry["video"]
    if not path.exists():
        disk.write_atomic(path, data, durable=False)  # the artifact's commit syncs all its files
    return entry


def problem(folder: Path, entries: Sequence[Mapping[str, Any]] | None) -> str | None:
    """The reason why the videos of a row cannot be used, in words; None when they can. It checks names and sizes.
    ``load`` and the artifact's digest check content."""
    for number, entry in enumerate(entries or ()):
        if wrong := _malformed(entry):
            return f"its video {number} cannot be used: {wrong}"
        path = folder / entry["video"]
        if not path.is_file():
            return f"its video {number} is missing: there is no file {path}"
        if path.stat().st_size != entry["size"]:
            return f"its video {number}, {path}, has {path.stat().st_size} bytes instead of {entry['size']}"
    return None


def load(folder: Path, entries: Sequence[Mapping[str, Any]] | None) -> tuple[VideoRef, ...]:
    """The videos of a row with their absolute paths. Raises ``InputError`` if a file is missing or differs from its
    name."""
    if wrong := problem(folder, entries):
        raise InputError(f"A row of {folder} cannot be loaded: {wrong}. Make the artifact again.")
    found: list[VideoRef] = []
    for entry in entries or ():
        path = (folder / entry["video"]).resolve()
        if _hash(path, path.stat().st_mtime_ns) != path.stem:
            raise InputError(f"The video {path} lacks the sha256 it is named by: it is damaged. Make it again.")
        found.append(VideoRef(str(path), entry["width"], entry["height"], entry["frames"], entry["frames_per_s"]))
    return tuple(found)


def address(ref: VideoRef) -> str:
    """The name by content of an artifact's video, wherever it lies; of any other file only its name.

    >>> sha = "ab" + "0" * 62
    >>> address(VideoRef(f"/home/me/data/v1/videos/ab/{sha}.mkv", 64, 48, 10, 5.0)) == f"videos/ab/{sha}.mkv"
    True
    """
    path = Path(ref.path)
    name = "/".join(path.parts[-3:])
    return name if _ADDRESS.fullmatch(name) else path.name


def content(ref: VideoRef) -> str:
    """The ``address`` of an artifact's video; of any other file its sha256, as another file may come in its place."""
    path = Path(ref.path)
    if (name := address(ref)) != path.name or not path.is_file():
        return name
    return _hash(path, path.stat().st_mtime_ns)


def portable(scored: Scored) -> Scored:
    """A rollout as it is stored: its sample's videos by ``address``, not by their path on this machine."""
    trajectory = scored.trajectory
    if not trajectory.sample.videos:
        return scored
    named = tuple(replace(ref, path=address(ref)) for ref in trajectory.sample.videos)
    return replace(scored, trajectory=replace(trajectory, sample=replace(trajectory.sample, videos=named)))


def _malformed(entry: Mapping[str, Any]) -> str | None:
    if not isinstance(entry.get("video"), str) or not _ADDRESS.fullmatch(entry["video"]):
        return f"its name is {entry.get('video')!r}; expected {FOLDER}/ab/<sha256>.<ending> within the artifact"
    if any(not isinstance(entry.get(name), int | float) for name in _NUMBERS):
        return f"its numbers are {dict(entry)}; expected {', '.join(_NUMBERS)}"
    if min(entry[name] for name in _NUMBERS) <= 0 or not math.isfinite(entry["frames_per_s"]):
        values = ", ".join(f"{name} {entry[name]}" for name in _NUMBERS)
        return f"{values}: all must be above zero"
    return None


@functools.lru_cache(maxsize=65536)
def _hash(path: Path, changed_ns: int) -> str:
    """The sha256 of a file, computed once per change: several rows may show one video."""
    del changed_ns
    with disk.checked(path, "read the video"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
