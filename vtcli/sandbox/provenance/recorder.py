"""The recorder: operations of the code on images, taken at run time from the libraries it calls, with the map back to
the input picture.

The patches in ``patch_pil``, ``patch_arrays`` and ``patch_cv2`` tell the active ``Recorder`` of every operation that
user code calls; slices and views of arrays, which no patch sees, are read off their memory when they are used next. All
of this runs in the process that the code may tamper with: it is a *claim*, see ``types.OutputImage.verified``.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtcli.protocols import Pixels
from vtcli.sandbox.provenance import layout
from vtcli.sandbox.provenance.trace import IDENTITY, Map, Trace
from vtcli.sandbox.types import Operation
from vtcli.schema import Json

Array = npt.NDArray[Any]
MARK, PRINT = "_vtcli_trace", "_vtcli_print"  # of a PIL image: its history, the checksum of watched pixels
RECENT = 4  # of them, copies are recognised
LARGE = 48 << 20  # bytes of an array that is searched for copied parts
SEEN = 256  # operations that one run reports
NOTES = 32
ARRAYS = 1024  # arrays whose history is known at a time
PLACEHOLDERS = frozenset({
    *("image", "img", "input", "input_image", "image_path", "picture", "photo", "original", "original_image"),
    *("your_image", "user_image", "path_to_image", "path_to_your_image", "example"),
})  # fmt: skip
"""Names without suffix that stand for "the image"."""
LOSSLESS = frozenset({"png", "bmp", "dib", "ppm", "tif", "tiff", "tga"})
"""File formats that keep all pixels of an RGB image, by Pillow's name or by suffix."""
QUIET = ("matplotlib", "mpl_toolkits", "PIL", "cv2", "scipy", "numpy", "sympy", "vtcli")
"""Callers whose operations are their own business."""


@dataclass(frozen=True, slots=True)
class NewImage:
    """The image that an operation returned, its (width, height) in pixels, and the map back to its source."""

    image: object
    size: tuple[int, int]
    step: Map | None


class Recorder:
    """The histories of one episode's images and the log of its current run.

    ``pictures`` are the input pictures' pixels; ``clamp``: ``Image.crop`` boxes are clamped; ``files`` maps
    the names of input files to pictures, ``root`` is the folder they lie in.
    """

    def __init__(
        self, pictures: Sequence[Pixels], files: Mapping[str, int], root: str, clamp: bool = True, paths: bool = True
    ) -> None:
        self.pictures = tuple(pictures)
        self.inputs = dict(files)
        self.root = root
        self.clamp, self.paths = clamp, paths
        self.operations: list[Operation] = []
        self.notes: list[str] = []
        self.troubles: list[str] = []
        self.turns: list[layout.Orientation] = []
        self.videos: dict[int, str] = {}  # id of a reader: its variable
        self.clamped: dict[int, tuple[float, ...]] = {}  # the box asked for, while its crop is under way
        self.shown = 0  # operations seen, also those beyond SEEN
        self._arrays: dict[int, tuple[weakref.ref[Array], Trace, int]] = {}
        self._missed: dict[int, weakref.ref[Array]] = {}  # arrays that are no copy of a known part
        self._files: dict[str, tuple[tuple[int, int, int], Trace]] = {}
        self._logged: set[tuple[int, tuple[Any, ...]]] = set()
        for name, index in self.inputs.items():
            self.saved(name, self.fresh(index), "png")  # pixels as decoded: no loss to record

    def begin(self) -> None:
        """A new run: an empty log; histories stay."""
        self.operations, self.notes, self.shown = [], [], 0
        self._logged = set()

    def begin_log(self) -> None:
        """Forgets what the recipe's own code did before the policy's."""
        self.operations, self.shown = [], 0

    def note(self, text: str) -> None:
        """Adds a note on this run for the policy, once."""
        if text not in self.notes and len(self.notes) < NOTES:
            self.notes.append(text)

    def video_name(self, reader: object) -> str:
        """The variable that a video reader was given as; empty for a reader that the code made."""
        return self.videos.get(id(reader), "")

    def trouble(self, where: str, problem: Exception) -> None:
        """A record that could not be made: kept for tests and for the curious, unknown to the policy."""
        if len(self.troubles) < NOTES:
            self.troubles.append(f"{where}: {type(problem).__name__}: {problem}"[:200])

    def log(self, operation: Operation) -> None:
        self.shown += 1
        if len(self.operations) < SEEN:
            self.operations.append(operation)

    def fresh(self, index: int) -> Trace:
        """The history of an untouched input picture."""
        height, width = self.pictures[index].shape[:2]
        return Trace.of_picture(index, (width, height))

    def of(self, value: object) -> Trace | None:
        """The history of a PIL image or an array, None when it is not known."""
        if isinstance(value, Image.Image):
            return self._of_image(value)
        return self._of_array(value) if isinstance(value, np.ndarray) else None

    def watch(self, image: Image.Image) -> None:
        """The code holds the image's pixels and may write them: from now on they are compared at each use."""
        image.__dict__[PRINT] = zlib.crc32(image.tobytes())

    def _of_image(self, image: Image.Image) -> Trace | None:
        trace, print_ = image.__dict__.get(MARK), image.__dict__.get(PRINT)
        if not isinstance(trace, Trace) or trace.size != image.size:
            return None
        if print_ is not None and print_ != (now := zlib.crc32(image.tobytes())):
            trace = image.__dict__[MARK] = self._edited(trace, "pil")
            image.__dict__[PRINT] = now
        return trace

    def give(self, value: object, trace: Trace | None) -> None:
        """``value`` has this history from now on."""
        if isinstance(value, Image.Image):
            value.__dict__[MARK] = trace
            value.__dict__.pop(PRINT, None)
        elif isinstance(value, np.ndarray):
            if trace is None:
                self._arrays.pop(id(value), None)
                return
            if len(self._arrays) >= ARRAYS:
                self._arrays = {k: v for k, v in self._arrays.items() if v[0]() is not None}
                while len(self._arrays) >= ARRAYS:
                    self._arrays.pop(next(iter(self._arrays)))
            self._arrays[id(value)] = (weakref.ref(value), trace, layout.fingerprint(value))

    def did(
        self,
        source: object,
        name: str,
        arguments: Mapping[str, Json],
        library: str,
        result: NewImage,
    ) -> Trace | None:
        """User code made ``result`` of ``source``."""
        before = source if isinstance(source, Trace) else self.of(source)
        if before is None:
            self.log(Operation(name, dict(arguments), library))
            self.give(result.image, None)
            return None
        after = before.then(name, arguments, library, result.size, result.step)
        self.log(after.operations[-1])
        self.give(result.image, after)
        return after

    def saved(self, path: str, trace: Trace | None, format_name: str | None = None) -> None:
        """A file now holds an image with this history, in the given format or in that of its suffix."""
        where = self.place(path)
        signature = _signature(where)
        used = (format_name or Path(where).suffix[1:]).lower()
        if trace is not None and used not in LOSSLESS:
            trace = trace.lossy(used)
        if trace is None or signature is None:
            self._files.pop(where, None)
        else:
            self._files[where] = (signature, trace)

    def of_file(self, path: str) -> Trace | None:
        """The history of a file's image, None when it is unknown or the file changed since."""
        where = self.place(path)
        found = self._files.get(where)
        return found[1] if found is not None and found[0] == _signature(where) else None

    def led(self, path: Any) -> Any:
        """Returns the path to read instead of a misspelt path of an input image. Misspelt means another folder,
        suffix or case, or a placeholder if there is one input only. Other paths are returned unchanged."""
        if not self.paths or not self.inputs or not isinstance(path, str | os.PathLike):
            return path
        asked = os.fspath(path)
        if not isinstance(asked, str) or "\0" in asked or os.path.lexists(Path(self.root, asked)):
            return path
        name = Path(asked).name
        same = [n for n in self.inputs if Path(n).name.lower() == name.lower()]
        same = same or [n for n in self.inputs if Path(n).stem.lower() == Path(name).stem.lower()]
        if not same and len(self.inputs) == 1 and Path(name).stem.lower() in PLACEHOLDERS:
            same = list(self.inputs)
        if len(same) != 1:
            return path
        self.note(f"there is no file {asked[:200]!r}: read the input image {same[0]!r} instead")
        return str(Path(self.root, same[0]))

    def place(self, path: str) -> str:
        return os.path.normpath(Path(self.root, os.fspath(path)))

    def _of_array(self, array: Array) -> Trace | None:
        known = self._known(array)
        if known is not None:
            return known
        root = array.base
        depth = 0
        while isinstance(root, np.ndarray) and depth < 8:
            known = self._known(root)
            if known is not None:
                return self._view(array, root, known)
            root, depth = root.base, depth + 1
        return self._found(array)

    def _known(self, array: Array) -> Trace | None:
        entry = self._arrays.get(id(array))
        if entry is None or entry[0]() is not array:
            return None
        if entry[2] != layout.fingerprint(array):
            # Written to by index since: what the pixels show is still told by the chain, but not that they are its.
            trace = self._edited(entry[1], "numpy")
            self._arrays[id(array)] = (entry[0], trace, layout.fingerprint(array))
            return trace
        return entry[1]

    def _edited(self, trace: Trace, library: str) -> Trace:
        after = trace.then("other", {"kind": "pixels written"}, library, trace.size, IDENTITY)
        self.log(after.operations[-1])
        return after

    def _view(self, array: Array, root: Array, trace: Trace) -> Trace | None:
        seen = layout.read(array, root)
        if seen is None:
            return None
        after = seen.applied(trace)
        key = (id(root), seen.key)
        if key not in self._logged:
            self._logged.add(key)
            for operation in after.operations[len(trace.operations) :]:
                # Orientation by a view is logged where ``np.rot90`` and its like are called.
                if operation.name in ("crop", "resize"):
                    self.log(operation)
        return after

    def _found(self, array: Array) -> Trace | None:
        """Returns the history of a copy, recognised by its pixels, of a known array's part or of an input picture.
        ``ndarray.copy`` itself cannot be patched, because its type is immutable."""
        if array.ndim != 3 or array.dtype != np.uint8 or array.shape[2] != 3 or min(array.shape[:2]) < 8:
            return None
        missed = self._missed.get(id(array))
        if missed is not None and missed() is array:
            return None
        recent = [(kept, trace) for kept, trace in self._recent() if kept is not array]
        known = recent + [(picture, self.fresh(index)) for index, picture in enumerate(self.pictures)]
        wholes = [(layout.Whole(pixels), trace) for pixels, trace in known if pixels.nbytes <= LARGE]
        for seen in (layout.Orientation(), *self.turns):
            upright = array.swapaxes(0, 1) if seen.transposed else array
            upright = upright[:: -1 if seen.mirror_y else 1, :: -1 if seen.mirror_x else 1]
            for swapped in (False, True):
                part = upright[:, :, ::-1] if swapped else upright
                for whole, trace in wholes:
                    corner = whole.place(part)
                    if corner is not None:
                        after = self._cut(trace, corner, (part.shape[1], part.shape[0]))
                        after = layout.oriented(after, seen, "numpy")
                        after = replace(after, swapped=after.swapped != swapped)
                        self.give(array, after)
                        return after
        if len(self._missed) >= RECENT * 16:
            self._missed.clear()
        self._missed[id(array)] = weakref.ref(array)
        return None

    def _cut(self, trace: Trace, corner: tuple[int, int], size: tuple[int, int]) -> Trace:
        if size == trace.size:
            return trace
        x, y = corner
        box: list[Json] = [x, y, x + size[0], y + size[1]]
        after = trace.then("crop", {"box": box}, "numpy", size, (1.0, 0.0, x, 0.0, 1.0, y))
        self.log(after.operations[-1])
        return after

    def _recent(self) -> list[tuple[Array, Trace]]:
        """The last few arrays with a history of their own pixels, the latest first."""
        found: list[tuple[Array, Trace]] = []
        for reference, trace, print_ in reversed(self._arrays.values()):
            array = reference()
            if array is None or array.ndim != 3 or array.dtype != np.uint8 or array.shape[2] != 3:
                continue
            if print_ == layout.fingerprint(array):
                found.append((array, trace))
            if len(found) >= RECENT:
                break
        return found

    def turned(self, orientation: layout.Orientation) -> None:
        """The code turned an array so: a copy of it is recognised in this orientation too."""
        if orientation not in self.turns:
            self.turns = [*self.turns[-3:], orientation]


class _Depth(threading.local):
    """Per thread: inside a patched function, whose own calls are not the user's."""

    inside = False


DEPTH = _Depth()
_active: Recorder | None = None


def activate(recorder: Recorder | None) -> None:
    """Directs the reports of the patches to this recorder. None: the patches report to no recorder and change
    nothing."""
    global _active  # noqa: PLW0603  # patches belong to the process, and so does their recorder
    _active = recorder


def active() -> Recorder | None:
    """The recorder to tell of a call made by user code: None inside other patched functions, and for calls that the
    libraries make for themselves."""
    if _active is None or DEPTH.inside:
        return None
    caller = sys._getframe(2).f_globals.get("__name__", "")  # pyright: ignore[reportPrivateUsage]
    return None if isinstance(caller, str) and caller.partition(".")[0] in QUIET else _active


def current() -> Recorder | None:
    """The recorder, whoever calls."""
    return _active


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)
