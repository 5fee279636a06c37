"""Images and videos of a row, in all the shapes in which sets hold them, as bytes.

A value's type decides how it is read, never its column's name: LLaMA-Factory counted the characters of a path given in
place of a list as images (LLaMA-Factory#5883). A text is base64 only if it decodes to the first bytes of a known
format, because the base64 of a JPEG begins with ``/9j/``, as a path may.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vtcli.data.importers.problems import Place, RowProblem

MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")
SHORTEST = 64
"""Characters of the shortest text that is tried as base64; no path and no image is shorter and longer at once."""

NO_PATH = 256
"""Characters from which a text that is base64 throughout is not a path, whatever its first bytes are (AVIF, JXL)."""

SHOWN = 100
"""Characters of a path that an error shows."""

INNER = ("bytes", "image", "url", "image_url", "path", "video")
"""Keys under which a struct holds its image, the first with a value counts."""


@dataclass(frozen=True, slots=True)
class Finder:
    """Folders in which a row's files are looked for, the file's own first."""

    roots: tuple[Path, ...]
    prefix: str = ""

    def path(self, text: str, what: str, place: Place) -> Path:
        """The file that a row names.

        Raises:
            RowProblem: the file is missing, is a folder or a pipe, or lies outside of all ``roots``.
        """
        text = text.removeprefix("file://")
        text = text.removeprefix(self.prefix) if self.prefix else text
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
        tried: list[Path] = []
        try:
            for root in self.roots:
                path = root / text
                # Resolved first, because a link or ``..`` could lead out of the folders; a foreign row could name any
                # picture here.
                if not any(path.resolve().is_relative_to(folder.resolve()) for folder in self.roots):
                    continue  # a link may lead from one folder to another, as in the cache of the hub
                tried.append(path)
                if path.is_file():
                    return path
        except (OSError, RuntimeError, ValueError) as error:  # too long for a name, a NUL in it, a loop of links
            said = getattr(error, "strerror", None) or error
            raise RowProblem(
                place, f"{what} of no possible name", f"{place}: the {what} {shown!r} can name no file ({said})."
            ) from error
        if not tried:
            raise RowProblem(
                place,
                f"{what} outside of its folder",
                f"{place}: the {what} {shown} lies outside of {', '.join(map(str, self.roots))}. Name its folder, "
                "that of a link's target too, reading.root, or how paths begin on their author's disk, reading.prefix.",
            )
        if other := next((path for path in tried if path.exists()), None):
            said = (
                f"{place}: the {what} {other} is not a file: it is a folder, a pipe or a device. Name the file itself."
            )
            raise RowProblem(place, f"{what} that is not a file", said)
        raise RowProblem(
            place,
            f"no such {what}",
            f"{place}: the {what} {tried[0]} cannot be read (No such file). Say where it is: reading.root, and "
            "reading.prefix for what paths begin with on their author's disk.",
        )

    def contained(self, value: Any) -> Iterator[Path]:
        """The paths of existing files that a value names, of any shape; for the identity of an artifact."""
        for entry in listed(value):
            inner: Any = entry
            while isinstance(inner, Mapping):
                inner = _inner(cast("Mapping[str, Any]", inner))
            if isinstance(inner, str) and inner and _base64(inner) is None:
                name = inner.removeprefix("file://").removeprefix(self.prefix)
                with contextlib.suppress(OSError, ValueError):  # a name that no file can have
                    yield from [path for root in self.roots if (path := root / name).is_file()][:1] or [
                        self.roots[0] / name
                    ]


def listed(value: Any) -> list[Any]:
    """One image or several as a list; none for None and for an empty list."""
    if value is None or value == "":
        return []
    return (
        [entry for entry in cast("Sequence[Any]", value) if entry is not None]
        if isinstance(value, list | tuple)
        else [value]
    )


def read(value: Any, what: str, finder: Finder, place: Place) -> bytes:
    """The bytes of one image or video. Raises ``RowProblem`` as ``read_file`` does."""
    return read_file(value, what, finder, place)[0]


def read_file(value: Any, what: str, finder: Finder, place: Place) -> tuple[bytes, Path | None]:
    """Returns the bytes of one image or video and its path, or None if the bytes stand in the row or an archive.

    Raises:
        RowProblem: a URL, a missing file, or a value of no known shape.
    """
    if isinstance(value, Mapping):
        inner = _inner(cast("Mapping[str, Any]", value))
        if inner is not None:
            return read_file(inner, what, finder, place)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), None
    if isinstance(value, str):
        return _of_text(value, what, finder, place)
    if isinstance(value, list) and value and all(isinstance(v, int) for v in cast("list[Any]", value)):
        return bytes(cast("list[int]", value)), None  # what a JSON writer makes of bytes
    raise RowProblem(
        place,
        f"{what} of an unknown shape",
        f"{place}: {what} is a {type(value).__name__}; expected bytes, a struct with bytes, a path, or base64.",
    )


def _inner(value: Mapping[str, Any]) -> Any:
    return next((value[key] for key in INNER if value.get(key) not in (None, b"", "")), None)


def _of_text(text: str, what: str, finder: Finder, place: Place) -> tuple[bytes, Path | None]:
    if text.startswith(("http://", "https://", "hf://", "s3://", "gs://")):
        raise RowProblem(
            place,
            f"{what} is a URL",
            f"{place}: its {what} is the URL {text[:100]}. Nothing is downloaded here: fetch the files first, and give "
            "their paths (reading.root, reading.prefix).",
        )
    if (data := _base64(text)) is not None:
        return data, None
    if text.startswith("data:"):
        raise RowProblem(place, f"{what} is not base64", f"{place}: its {what} is a data URI that is not base64 image.")
    path = finder.path(text, what, place)
    try:
        return path.read_bytes(), path
    except OSError as error:
        raise RowProblem(
            place, f"no such {what}", f"{place}: the {what} {path} cannot be read ({error.strerror or error})."
        ) from error


def _base64(text: str) -> bytes | None:
    """The bytes of a data URI or of plain base64 (line breaks allowed); None for anything else."""
    uri = text.startswith("data:")
    body = text.partition(",")[2] if uri else text
    if len(body) < SHORTEST and not uri:
        return None
    try:
        known = uri or len(body) >= NO_PATH or base64.b64decode(body[:16]).startswith(MAGIC)
        if not known:
            return None
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
