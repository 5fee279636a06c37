"""numpy, scipy.ndimage and the video reader: turns and flips of arrays, copies that keep a history, frames read."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from PIL import Image

from vtcli.sandbox.provenance import layout
from vtcli.sandbox.provenance import recorder as recording
from vtcli.sandbox.provenance.patching import PatchedCall, Tell, known, wrap
from vtcli.sandbox.provenance.recorder import DEPTH
from vtcli.sandbox.provenance.trace import IDENTITY, Trace, scaled, turned
from vtcli.sandbox.types import Operation
from vtcli.schema import Json


def install() -> None:
    """Patches numpy, scipy.ndimage and the video reader for this process; inert until a recorder is active."""
    for name in ("rot90", "flip", "fliplr", "flipud", "transpose", "swapaxes"):
        wrap(np, name, _TURNS[name])
    for name in ("array", "asarray", "ascontiguousarray", "copy"):
        _keep(name)
    _scipy()
    _video()


def _logged(name: str, arguments: dict[str, Json], call: PatchedCall) -> None:
    """Into the log only: the result is a view, whose history is read off its memory."""
    source = next(iter(call.given.values()), None)
    seen = layout.read(call.result, source) if isinstance(source, np.ndarray) else None
    if seen is not None:
        call.recorder.turned(layout.Orientation(seen.x.backwards, seen.y.backwards, seen.turned))
    trace = call.recorder.of(call.result)
    image, box = (trace.image, trace.box) if trace is not None else (None, None)
    call.recorder.log(Operation(name, arguments, "numpy", image, box))


def _rot90(call: PatchedCall) -> None:
    axes = tuple(call.get("axes", (0, 1)))
    turns = int(call.get("k", 1)) % 4
    if axes == (1, 0):
        turns = -turns % 4
    if axes in ((0, 1), (1, 0)) and turns:
        _logged("rotate", {"degrees": (360 - 90 * turns) % 360}, call)


def _flip(call: PatchedCall) -> None:
    axis = call.get("axis")
    axes = {axis} if isinstance(axis, int) else set(axis or (0, 1))
    if axes == {0, 1}:
        _logged("rotate", {"degrees": 180}, call)
    elif len(axes) == 1 and axes <= {0, 1}:
        _logged("flip", {"axis": "horizontal" if 1 in axes else "vertical"}, call)


def _transpose(call: PatchedCall) -> None:
    if call.result.ndim in (2, 3) and call.get("axes", (1, 0, 2)) in ((1, 0, 2), [1, 0, 2], (1, 0), None):
        _logged("rotate", {"degrees": 90}, call)
        _logged("flip", {"axis": "horizontal"}, call)


_TURNS: dict[str, Tell] = {
    "rot90": _rot90,
    "flip": _flip,
    "fliplr": lambda call: _logged("flip", {"axis": "horizontal"}, call),
    "flipud": lambda call: _logged("flip", {"axis": "vertical"}, call),
    "transpose": _transpose,
    "swapaxes": lambda call: _transpose(call) if {call.get("axis1"), call.get("axis2")} == {0, 1} else None,
}


def _keep(name: str) -> None:
    """``np.array(image)`` and its like: the copy has the history of what was copied. A separate wrapper, because these
    are called often: two type checks for anything that is no image."""
    original: Any = getattr(np, name)
    if isinstance(original, type) or hasattr(original, "vtcli_original"):
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, Image.Image | np.ndarray) and isinstance(result, np.ndarray) and result is not first:
            recorder = recording.current()
            if recorder is not None and not DEPTH.inside and result.dtype == np.uint8 and result.ndim in (2, 3):
                _inherit(recorder, first, result)
        return result

    call.vtcli_original = original  # pyright: ignore[reportAttributeAccessIssue]
    setattr(np, name, call)


def _inherit(recorder: recording.Recorder, first: Any, result: Any) -> None:
    DEPTH.inside = True
    try:
        if isinstance(first, np.ndarray) and (first.dtype != np.uint8 or first.shape != result.shape):
            return
        trace = recorder.of(first)
        if trace is not None and trace.size == (result.shape[1], result.shape[0]):
            recorder.give(result, trace)
    except Exception as problem:
        recorder.trouble("copy", problem)
    finally:
        DEPTH.inside = False


def _scipy() -> None:
    from scipy import ndimage

    def rotate(call: PatchedCall) -> None:
        if call.get("axes", (1, 0)) not in ((1, 0), (0, 1)) or call.result.ndim < 2:
            return
        # ndimage turns counter-clockwise in (row, column) axes (1, 0), as PIL does on screen.
        degrees = float(-call.get("angle", 0)) * (1 if tuple(call.get("axes", (1, 0))) == (1, 0) else -1)
        new, old = _size(call.result), _size(call.given["input"])
        arguments = known(degrees=degrees % 360, expand=bool(call.get("reshape", True)))
        call.recorder.did(
            call.before, "rotate", arguments, "numpy", recording.NewImage(call.result, new, turned(degrees, new, old))
        )

    def zoom(call: PatchedCall) -> None:
        new, old = _size(call.result), _size(call.given["input"])
        step = scaled(new, (0, 0, *old))
        call.recorder.did(call.before, "resize", known(size=new), "numpy", recording.NewImage(call.result, new, step))

    wrap(ndimage, "rotate", rotate)
    wrap(ndimage, "zoom", zoom)
    for name in ("gaussian_filter", "median_filter", "uniform_filter", "sobel", "laplace"):
        wrap(ndimage, name, _filtered(name))


def _filtered(kind: str) -> Tell:
    def tell(call: PatchedCall) -> None:
        arguments = known(kind=kind)
        call.recorder.did(
            call.before, "filter", arguments, "numpy", recording.NewImage(call.result, _size(call.result), IDENTITY)
        )

    return tell


def _size(array: Any) -> tuple[int, int]:
    return int(array.shape[1]), int(array.shape[0])


def _video() -> None:
    """Frames read: their indices, and a history that begins with them."""
    from vtcli.sandbox.video import reader as video

    def seen(reader: Any, indices: tuple[int, ...], frames: Any) -> None:
        recorder = recording.current()
        if recorder is None:
            return
        arguments: dict[str, Json] = {"indices": [int(i) for i in indices[:512]], "video": recorder.video_name(reader)}
        operation = Operation("frames", arguments, "video")
        recorder.log(operation)
        height, width = frames.shape[-3:-1]
        trace = Trace(None, (width, height), (operation,), None)
        recorder.give(frames, trace)
        # Views of the reader's own array type name the plain array below it as their base.
        if isinstance(frames.base, np.ndarray) and frames.base.shape == frames.shape:
            recorder.give(frames.base, trace)

    video.on_frames = seen
