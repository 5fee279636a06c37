"""Videos of a data set: frames that become a file, and files that were brought along.

Frames to the bytes of a video file: the same frames give the same bytes, in every process and on every machine.

FFV1 is lossless, computes with whole numbers only, and is made here by one thread; Matroska writes neither
the time of day nor random ids. So a video of a data set is known by its sha256. A frame that code fetches is the
picture that the generator drew. 24 frames of 112 x 112 pixels with even ground are some 15 kB.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.codec.context import Flags
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vtcli.errors import ConfigError, InputError
from vtcli.protocols import Pixels
from vtcli.sandbox.video import reader as video
from vtcli.schema import VideoRef

NAME = "clip.mkv"
STILLS = 9  # of footage, for people to look at
STILL_PX = 480  # their longer side at most
TICKS_PER_S = 1000  # of Matroska's clock
_OPTIONS = {"coder": "1", "context": "1"}  # range coder with large contexts: a ninth of the default's size
_KEY_EVERY = 12  # frames; how far a reader that wants one frame has to decode


@dataclass(frozen=True, slots=True)
class Clip:
    """The frames of a video, shown at a constant rate; the first one is shown at second 0."""

    frames: npt.NDArray[np.uint8]  # (N, H, W, 3) RGB
    frames_per_s: int

    def ref(self, path: str = NAME) -> VideoRef:
        """The sample's reference to the video, stored as the file ``path``."""
        count, height, width, _ = self.frames.shape
        return VideoRef(path, width, height, count, float(self.frames_per_s))

    @property
    def name(self) -> str:
        return NAME

    def file(self) -> bytes:
        """See ``encode``."""
        return encode(self)

    def stills(self) -> dict[int, Pixels]:
        """The first frame of every second, by its number."""
        return {number: self.frames[number] for number in range(0, len(self.frames), self.frames_per_s)}


@dataclass(frozen=True, slots=True)
class Footage:
    """A video file that was brought along. It is kept byte by byte: what code fetches is decoded from the very file."""

    data: bytes
    name: str  # of the file; only its ending is kept
    width: int  # pixels, upright
    height: int
    frames: int
    frames_per_s: float  # the mean

    @classmethod
    def read(cls, data: bytes, name: str, where: str) -> Footage:
        """``where``: the origin of the bytes. Raises ``InputError`` for bytes that are not a video or lack frames."""
        with _on_disk(data) as path:
            try:
                found = video.info(path)
            except video.VideoError as error:
                raise InputError(
                    f"{where} cannot be read: {error}. Give a video file with frames, such as MP4, MKV, WebM or MOV."
                ) from error
        return cls(data, name, found.width, found.height, found.frames, found.frames_per_s)

    def ref(self, path: str | None = None) -> VideoRef:
        """The sample's reference to the video, stored as the file ``path``."""
        return VideoRef(path or self.name, self.width, self.height, self.frames, self.frames_per_s)

    def file(self) -> bytes:
        return self.data

    def stills(self) -> dict[int, Pixels]:
        """Up to ``STILLS`` evenly spread frames by their numbers, scaled to ``STILL_PX``. Skips frames that cannot be
        decoded."""
        count = min(STILLS, self.frames)
        numbers = sorted({round(i * (self.frames - 1) / max(count - 1, 1)) for i in range(count)})
        found: dict[int, Pixels] = {}
        scale = min(1.0, STILL_PX / max(self.width, self.height))
        width, height = (max(1, round(side * scale)) for side in (self.width, self.height))
        with _on_disk(self.data) as path:
            reader = video.VideoReader(path, width=width, height=height)
            for number in numbers:
                with contextlib.suppress(video.VideoError):
                    found[number] = np.asarray(reader[number])
        return found


@contextlib.contextmanager
def _on_disk(data: bytes) -> Generator[Path]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


def encode(clip: Clip) -> bytes:
    """The clip as a Matroska file. Raises ``ConfigError`` for a rate at which frames fall between two ticks of the
    container's clock: their times would be rounded."""
    if clip.frames_per_s < 1 or TICKS_PER_S % clip.frames_per_s:
        raise ConfigError(f"frames_per_s={clip.frames_per_s}: expected a divisor of {TICKS_PER_S}, such as 2, 4, 5, 8")
    file = io.BytesIO()
    with av.open(file, "w", format="matroska", options={"fflags": "bitexact"}) as container:
        stream: VideoStream = container.add_stream("ffv1", rate=clip.frames_per_s, options=_OPTIONS)
        stream.width, stream.height, stream.pix_fmt = clip.frames.shape[2], clip.frames.shape[1], "bgr0"
        context = stream.codec_context
        # One thread: slices of several would change the bytes, and with them the video's sha256.
        context.thread_type, context.thread_count, context.gop_size = "NONE", 1, _KEY_EVERY
        context.flags |= Flags.bitexact
        for pixels in clip.frames:
            container.mux(stream.encode(VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()
