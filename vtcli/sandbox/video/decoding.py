"""Frames of one video file: found by the container's index, decoded from the key frame before them, by PyAV.

All state lies in the memory of the process. The kernel's file position is not used: the children of a fork share it,
and a failed run would move it. The decoder has no threads, because a fork loses them. So a fork of the process is a
complete copy, and the transactions of the runner rely on it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Discard, Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from vtcli.protocols import Pixels

Indices = npt.NDArray[np.int64]
FORMATS = "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,h264,hevc,m4v,mjpeg,ivf,nut,obu"
"""Containers that are one file of pictures. Playlists (HLS, concat, DASH) are not here: they open other files."""
MAX_SIDE = 16384  # pixels; larger ones are damaged headers


class VideoError(ValueError):
    """A video or frame that cannot be read; the message is for the policy."""


class File:
    """The bytes of a video. They are not mapped: a mapping takes address space, which a run has little of.

    A given descriptor must stay open while frames are read. A file that is opened here is closed with this object."""

    def __init__(self, source: int | str | os.PathLike[str]) -> None:
        self._opened = -1
        if isinstance(source, int):
            self._fd = source
        else:
            self._fd = self._opened = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise VideoError("this video is not a regular file")
        self.size = status.st_size

    def __del__(self) -> None:
        if self._opened >= 0:
            os.close(self._opened)

    def at(self, place: int, size: int) -> bytes:
        return os.pread(self._fd, size, place)


class Cursor:
    """A file as FFmpeg reads it."""

    def __init__(self, file: File) -> None:
        self.file: File | None = file
        self._place = 0

    def read(self, size: int) -> bytes:
        data = self.file.at(self._place, size) if self.file else b""
        self._place += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        end = self.file.size if self.file else 0
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: end}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place


@dataclass(frozen=True, slots=True)
class Index:
    """Places of the frames, from the container alone. ``pts`` of the frames in display order, in units of
    ``time_base``; ``keys``: pts of the frames at which decoding can start. Without usable time stamps (``counted``)
    frames are distinguished by counting from the start of the file, and ``pts`` count them."""

    pts: Indices
    keys: Indices
    time_base: Fraction
    end: int  # pts at which the last frame ends
    counted: bool
    fault: str  # why reading ended before the end of the file, or ""


def reason_of(problem: BaseException) -> str:
    if isinstance(problem, EOFError):
        return "it ends before its first frame"
    return str(getattr(problem, "strerror", None) or problem or type(problem).__name__)


def _packets(container: InputContainer, stream: VideoStream, faults: list[str]) -> Iterator[Packet[VideoStream] | None]:
    """Packets of the pictures, then None: the codec's last frames may come out."""
    try:
        for packet in container.demux(stream):
            if packet.size:
                yield packet
    except (FFmpegError, OSError, ValueError) as problem:
        faults.append(reason_of(problem))
    yield None


def _decoded(container: InputContainer, stream: VideoStream, faults: list[str]) -> Iterator[VideoFrame]:
    for packet in _packets(container, stream, faults):
        try:
            yield from stream.decode(packet)
        except (FFmpegError, ValueError) as problem:  # the codec finds its way again at a later packet
            faults.append(reason_of(problem))


class Decoder:
    """One pass through the pictures: opened container, codec, and the iterator over decoded frames."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.cursor = Cursor(file)
        self.scale = VideoReformatter()
        self._open()

    def __del__(self) -> None:  # PyAV's objects refer to each other: the file would stay until the collector comes
        self.cursor.file = None

    def _open(self) -> None:
        self.cursor.file = None
        self.cursor = Cursor(self.file)
        self.faults: list[str] = []  # what could not be read or decoded since the last seek
        if self.file.size == 0:
            raise VideoError("this video file is empty")
        try:
            container = av.open(
                self.cursor,
                mode="r",
                options={"format_whitelist": FORMATS, "protocol_whitelist": "none"},
                metadata_errors="replace",
                buffer_size=1 << 16,
            )
        except (FFmpegError, ValueError, OSError) as problem:
            raise VideoError(f"this file is damaged, cut off or no video: {reason_of(problem)}") from None
        self.container: InputContainer = container
        self.stream = self._pictures(container)
        self.frames: Iterator[VideoFrame] = iter(())
        self.position: int | None = None  # index of the next frame of ``frames``; None: seek first

    @staticmethod
    def _pictures(container: InputContainer) -> VideoStream:
        streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        if not streams:
            raise VideoError("this file has no video stream")
        stream = streams[0]
        context = cast(Any, stream).codec_context
        if context is None:
            raise VideoError("this video's codec is not known here")
        context.thread_type, context.thread_count = "NONE", 1
        for other in container.streams:
            if other.index != stream.index:
                other.discard = Discard.all
        if not (0 < stream.width <= MAX_SIDE and 0 < stream.height <= MAX_SIDE):
            raise VideoError(
                f"this video's frames have {stream.width} x {stream.height} pixels; expected 1 to {MAX_SIDE} a side"
            )
        return stream

    def index(self) -> Index:
        """Reads every packet's header and decodes none."""
        stamps: list[int | None] = []
        keys: list[int | None] = []
        length = 1
        for packet in _packets(self.container, self.stream, self.faults):
            if packet is None:
                continue
            if packet.is_keyframe:
                keys.append(packet.pts)
            if not packet.is_discard:  # cut away by an edit list, decoded but never shown
                stamps.append(packet.pts)
                length = packet.duration or length
        if not stamps:
            raise VideoError("this video has no frames" + "".join(f": {f}" for f in self.faults[-1:]))
        fault = self.faults[-1] if self.faults else ""
        counted = self.container.format.name == "mpeg" or (
            self.container.format.name == "avi" and bool(self.stream.codec_context.has_b_frames)
        )  # their stamps are of decoding, or of some frames only, and come out otherwise after a seek
        known = np.unique(np.array([s for s in stamps if s is not None], np.int64))
        if not counted and len(known) == len(stamps) and self.stream.time_base:
            starts = np.unique(np.array([k for k in keys if k is not None], np.int64))
            return Index(known, starts, self.stream.time_base, int(known[-1]) + length, False, fault)
        rate = self.stream.average_rate or self.stream.guessed_rate or Fraction(25)
        numbers = np.arange(len(stamps), dtype=np.int64)
        return Index(numbers, numbers[:1], 1 / rate, len(stamps), True, fault)

    def start(self, index: Index, target: int, back: int) -> None:
        """Goes to the last key frame at or before ``target``, or ``back`` key frames before that."""
        key = int(np.searchsorted(index.keys, index.pts[target], side="right")) - 1 - back
        if index.counted or key < 0 or not self._seek(int(index.keys[key])):
            self._open()  # not every container can go back to its start
        self.faults = []
        self.frames, self.position = _decoded(self.container, self.stream, self.faults), 0 if index.counted else -1

    def _seek(self, stamp: int) -> bool:
        try:
            self.container.seek(stamp, stream=self.stream, backward=True)
        except FFmpegError:  # its table of key frames is damaged
            return False
        return True

    def find(self, index: Index, target: int) -> VideoFrame | None:
        """Decodes on to frame ``target``; None when the stream is past it or ends without it."""
        for frame in self.frames:
            if index.counted:
                at = cast(int, self.position)
            elif frame.pts is None:
                continue
            else:
                at = int(np.searchsorted(index.pts, frame.pts))
            self.position = at + 1
            if at >= target:
                exact = index.counted or (at < len(index.pts) and index.pts[at] == frame.pts)
                return frame if at == target and exact else None
        self.position = None
        return None

    def pixels(self, frame: VideoFrame, size: tuple[int, int] | None) -> Pixels:
        """(H, W, 3) RGB, turned by the display matrix. ``size``: (width, height) to scale to, after turning."""
        matrix = display_matrix(frame)
        across = matrix[1] != 0  # rows become columns
        width, height = (size[::-1] if across else size) if size else (None, None)
        rgb = self.scale.reformat(frame, width=width, height=height, format="rgb24", threads=1)
        return turned(cast(Pixels, rgb.to_ndarray()), matrix)


def display_matrix(frame: VideoFrame) -> tuple[int, int, int, int]:
    """(a, b, c, d) of the display matrix (ISO 14496-12, 8.5.2), each -1, 0 or 1. x' = a x + c y and y' = b x + d y.
    Other angles than multiples of 90 degrees are left as they are."""
    for data in cast(Any, frame).side_data:
        if data.type.name == "DISPLAYMATRIX" and len(bytes(data)) >= 36:
            entries = np.frombuffer(bytes(data)[:36], np.int32) / 65536
            a, b, c, d = (round(float(entries[i])) for i in (0, 1, 3, 4))
            if sorted((abs(a * d), abs(b * c))) == [0, 1]:
                return a, b, c, d
    return 1, 0, 0, 1


def turned(pixels: Pixels, matrix: tuple[int, int, int, int]) -> Pixels:
    a, b, c, d = matrix
    if b:
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return np.ascontiguousarray(pixels[:: 1 if d > 0 else -1, :: 1 if a > 0 else -1])
