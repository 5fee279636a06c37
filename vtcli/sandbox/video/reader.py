"""``video_clue_0``: the reader that PyVision-RL's prompt promises (decord's ``VideoReader``), decoded by PyAV.

Decord itself is not kept any more. What differs from it, on purpose: frames are numpy arrays that also know
``asnumpy()``; times start at the first frame; rotated videos come upright; a frame that cannot be decoded is an error,
never a neighbour's picture.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame

from vtcli.protocols import Pixels
from vtcli.sandbox.video.decoding import Decoder, File, Index, Indices, VideoError, display_matrix
from vtcli.sandbox.waits import BUSY_S


class Frames(np.ndarray[Any, np.dtype[np.uint8]]):
    """(H, W, 3) or (N, H, W, 3) RGB, with the method that decord's arrays have."""

    def asnumpy(self) -> Pixels:
        return self.view(np.ndarray)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Results computed from frames are plain arrays and numbers."""
        return array[()] if return_scalar else array.view(np.ndarray)


on_frames: Callable[[VideoReader, tuple[int, ...], Frames], None] | None = None
"""Called after every read with the reader, the frames' indices in the order asked for, and the pixels."""


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """Facts about a video for a prompt. ``frames_per_s`` is the mean where the rate varies."""

    width: int
    height: int
    frames: int
    frames_per_s: float


def info(source: int | str | os.PathLike[str]) -> VideoInfo:
    """Width and height in pixels after rotation, number of frames, and rate of a file or open descriptor.

    Reads the container, not the pictures. It parses foreign data: call it where a crash is harmless.

    Raises:
        VideoError: not a video, or nothing of it can be read.
    """
    reader = VideoReader(source)
    width, height = reader.size
    return VideoInfo(width, height, len(reader), reader.get_avg_fps())


class VideoReader:
    """Random access to the frames of a video, with decord's interface.

    ``source``: a path, an open descriptor of a regular file (which must stay open, and is not closed here), or another
    reader. ``width`` and ``height``: scale frames to this size in pixels; -1 keeps the video's own. The other arguments
    are decord's and change nothing. A file that is no video is noticed at first use.

    ``len(v)``; ``v[3]``, ``v[-1]`` (H, W, 3); ``v[0:90:30]``, ``v.get_batch([0, 30, 60])`` (N, H, W, 3), uint8 RGB.
    """

    def __init__(
        self,
        source: int | str | os.PathLike[str] | VideoReader,
        ctx: object = None,
        width: int = -1,
        height: int = -1,
        num_threads: int = 0,
        fault_tol: int = -1,
    ) -> None:
        self._file = source._file if isinstance(source, VideoReader) else File(source)
        self._asked = (width, height)
        self._decoder: Decoder | None = None
        self._cached: Index | None = None
        self._size: tuple[int, int] | None = None
        self._lock = threading.RLock()
        self._next = 0

    def __repr__(self) -> str:
        try:
            width, height = self.size
            return f"VideoReader({width} x {height} pixels, {len(self)} frames, {self.get_avg_fps():.6g} frames/s)"
        except VideoError as problem:
            return f"VideoReader({problem})"

    def __len__(self) -> int:
        return len(self._index.pts)

    def __getitem__(self, key: int | slice | Sequence[int] | Indices) -> Frames:
        if isinstance(key, slice):
            return self.get_batch(range(*key.indices(len(self))))
        if isinstance(key, Sequence) or (isinstance(key, np.ndarray) and key.ndim):
            return self.get_batch(key)
        return self._read(self._valid([operator.index(key)]))[0]

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels of the frames, after rotation and scaling. The first call decodes one frame."""
        if self._size is None:
            frame = self._decode(np.zeros(1, np.int64))[0]
            self._size = (frame.shape[1], frame.shape[0])
        return self._size

    def get_batch(self, indices: Sequence[int] | Indices) -> Frames:
        """Frames by index, in the order asked for, each decoded once: (N, H, W, 3). Negative ones count from the end.

        Raises:
            IndexError: an index the video does not have.
            VideoError: a frame that cannot be decoded.
        """
        return self._read(self._valid(indices))

    def get_avg_fps(self) -> float:
        """Frames per second, by the container, or else on average."""
        index = self._index
        rate = self._opened.stream.average_rate
        seconds = float((index.end - int(index.pts[0])) * index.time_base)
        return float(rate) if rate else len(index.pts) / seconds

    def get_frame_timestamp(self, idx: int | slice | Sequence[int] | Indices) -> npt.NDArray[np.float64]:
        """(2,) start and end of a frame in seconds from the start of the first; (N, 2) for several."""
        if isinstance(idx, slice):
            idx = range(*idx.indices(len(self)))
        one = np.ndim(cast(Any, idx)) == 0
        index, valid = self._index, self._valid(cast(Any, [idx] if one else idx))
        edges = (np.append(index.pts, index.end) - index.pts[0]) * float(index.time_base)
        times = np.stack([edges[valid], edges[valid + 1]], axis=1)
        return times[0] if one else times

    def get_key_indices(self) -> list[int]:
        """Frames at which decoding can start."""
        index = self._index
        return [int(i) for i in np.flatnonzero(np.isin(index.pts, index.keys))]

    def next(self) -> Frames:
        """The frame after the last frame of ``next``, or the frame that ``seek`` chose."""
        if self._next >= len(self):
            raise StopIteration
        self._next += 1
        return self[self._next - 1]

    def seek(self, pos: int) -> None:
        """Lets ``next`` go on at frame ``pos`` exactly."""
        self._next = int(self._valid([pos])[0])

    seek_accurate = seek

    def skip_frames(self, num: int = 1) -> None:
        """Lets ``next`` leave out ``num`` frames."""
        self._next += num

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keeps other threads out. Raises ``VideoError`` when another one stays in for ``BUSY_S``."""
        if not self._lock.acquire(timeout=BUSY_S):
            raise VideoError("another thread is still reading from this video")
        try:
            yield
        finally:
            self._lock.release()

    @property
    def _opened(self) -> Decoder:
        if self._decoder is None:
            self._decoder = Decoder(self._file)
        return self._decoder

    @property
    def _index(self) -> Index:
        with self._alone():
            if self._cached is None:
                self._cached = self._opened.index()
                self._opened.position = None
            return self._cached

    def _valid(self, indices: Sequence[int] | Indices) -> Indices:
        total = len(self)
        chosen = np.atleast_1d(np.asarray(indices)).astype(np.int64).ravel()
        chosen = np.where(chosen < 0, chosen + total, chosen)
        if wrong := [int(i) for i in np.asarray(indices).ravel()[(chosen < 0) | (chosen >= total)][:5]]:
            raise IndexError(f"no frames {wrong}: the video has {total}, 0 to {total - 1}")
        return chosen

    def _read(self, indices: Indices) -> Frames:
        batch = self._decode(indices).view(Frames)
        if on_frames is not None:
            on_frames(self, tuple(int(i) for i in indices), batch)
        return batch

    def _decode(self, indices: Indices) -> Pixels:
        with self._alone():
            batch: Pixels | None = None
            for target in np.unique(indices):
                pixels = self._one(int(target))
                if batch is None:
                    batch = np.empty((len(indices), *pixels.shape), np.uint8)
                if pixels.shape != batch.shape[1:]:  # the size changes within the stream
                    raise VideoError(
                        f"frame {target} has another size than frame {indices.min()}; read them one by one"
                    )
                batch[indices == target] = pixels
        return np.empty((0, *self.size[::-1], 3), np.uint8) if batch is None else batch

    def _one(self, target: int) -> Pixels:
        index, decoder = self._index, self._opened
        key = int(np.searchsorted(index.pts, index.keys[index.keys <= index.pts[target]].max(initial=index.pts[0])))
        near = decoder.position is not None and max(key, 0) <= decoder.position <= target
        frame = decoder.find(index, target) if near else None
        for back in (0, 1, len(index.keys)):  # a seek may land late, and leading frames need an earlier key frame
            if frame is not None:
                break
            decoder.start(index, target, back)
            frame = decoder.find(index, target)
        if frame is None:
            reason = (*decoder.faults, index.fault or "its data are damaged or missing")[0]
            raise VideoError(f"frame {target} of {len(index.pts)} cannot be decoded: {reason}")
        if frame.is_corrupt:
            warnings.warn(f"frame {target} is damaged in the file: parts of it are guessed", stacklevel=5)
        return decoder.pixels(frame, self._scaled(frame))

    def _scaled(self, frame: VideoFrame) -> tuple[int, int] | None:
        if max(self._asked) <= 0:
            return None
        across = display_matrix(frame)[1] != 0
        own = (frame.height, frame.width) if across else (frame.width, frame.height)
        return self._asked[0] if self._asked[0] > 0 else own[0], self._asked[1] if self._asked[1] > 0 else own[1]


def install_decord() -> None:
    """Lets ``import decord`` find this reader, where decord is not installed: the prompt names that library."""
    if "decord" in sys.modules:
        return
    decord, bridge = types.ModuleType("decord"), types.ModuleType("decord.bridge")

    def set_bridge(name: str) -> None:
        if name not in ("native", "numpy"):
            raise ValueError(f"bridge {name!r} is not here: frames are numpy arrays")

    def device(dev_id: int = 0) -> tuple[str, int]:
        return "cpu", dev_id

    cast(Any, bridge).set_bridge = set_bridge
    for name, value in {"VideoReader": VideoReader, "cpu": device, "gpu": device, "bridge": bridge}.items():
        setattr(decord, name, value)
    sys.modules.update({"decord": decord, "decord.bridge": bridge})
