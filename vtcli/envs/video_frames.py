"""Uniform frames of videos in the context: the usual baseline of video benchmarks, without code that fetches frames."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from vtcli.config.bounds import OutOfBounds
from vtcli.envs.card import EnvCard
from vtcli.errors import ConfigError, InputError
from vtcli.sandbox.video.reader import VideoError, VideoReader
from vtcli.schema import ImageRef, Sample, VideoRef
from vtcli.store.images import ImageStore

SAID = "These are frames of a video."
"""First line of such a question, as in VSI-Bench's own code and lmms-eval (``vsibench``)."""


def places(count: int, frames: int) -> list[int]:
    """Numbers of ``count`` of a video's frames, evenly spread from the first to the last; all where it has no more.

    VSI-Bench's code and lmms-eval take ``np.linspace(0, frames - 1, count, dtype=int)``. The same here, but a short
    video shows no frame twice.

    >>> places(4, 10), places(4, 2)
    ([0, 3, 6, 9], [0, 1])
    """
    return np.unique(np.linspace(0, frames - 1, count, dtype=int)).tolist()


@dataclass(frozen=True, slots=True)
class FrameChoice:
    """Frames of each video: so many, or so many a second, at least one."""

    count: int | None = None
    per_s: float | None = None

    @classmethod
    def read(cls, value: int | str) -> FrameChoice:
        """A number, or a rate: 32, "1fps", "0.5fps".

        Raises:
            OutOfBounds: neither of them, or not above 0.
        """
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(fps)?", str(value))
        number = float(found[1]) if found else 0.0
        if found is None or number <= 0 or (not found[2] and number != int(number)):
            raise OutOfBounds("frames", f"must be a number of frames, say 32, or a rate, say 1fps, got {value!r}.")
        return cls(per_s=number) if found[2] else cls(count=int(number))

    def of(self, video: VideoRef) -> int:
        """Number of frames that are taken of a video.

        >>> FrameChoice(per_s=1.0).of(VideoRef("a.mp4", 640, 480, frames=300, fps=30.0))
        10
        """
        if self.count is not None:
            return min(self.count, video.frames)
        return max(1, min(video.frames, math.floor(video.frames / video.fps * (self.per_s or 1.0))))


def require(value: int | str | None, card: EnvCard, max_images: int, *, offered: bool) -> None:
    """Raises ``ConfigError`` where frames do not fit, or where the environment's own prompt speaks of the video."""
    if value is None:
        return
    count = FrameChoice.read(value).count
    if count is not None and count > max_images:
        raise ConfigError(_too_many(f"eval.frames={value}", count, max_images))
    if card.videos and offered:
        raise ConfigError(
            f"eval.frames={value}: the environment {card.name} shows videos by code. Set eval.tools=none to ask with "
            "frames in the context, or leave eval.frames out"
        )


def _too_many(what: str, count: int, max_images: int) -> str:
    return (
        f"{what} and eval.agent.limits.max_images={max_images}: so many images do not fit. Set "
        f"eval.agent.limits.max_images={count}, and images.max_pixels so that eval.agent.limits.max_tokens has room"
    )


@dataclass
class UniformFrames:
    """Makes images out of the videos of samples: frames of each, evenly spread, in place of the video."""

    value: int | str
    images: ImageStore
    max_images: int
    _known: dict[str, tuple[ImageRef, ...]] = field(default_factory=dict[str, tuple[ImageRef, ...]], init=False)

    def __call__(self, sample: Sample) -> Sample:
        """The sample with frames, after its images. One without videos stays as it is.

        Raises:
            InputError: a video that cannot be read, or more frames than a trajectory may have images.
        """
        if not sample.videos:
            return sample
        choice = FrameChoice.read(self.value)
        count = len(sample.images) + sum(map(choice.of, sample.videos))
        if count > self.max_images:
            raise InputError(_too_many(f"eval.frames={self.value}, question {sample.id}", count, self.max_images))
        frames = [ref for video in sample.videos for ref in self._frames(video, choice.of(video), sample.id)]
        question = f"{SAID}\n{sample.question}"
        return replace(sample, question=question, images=(*sample.images, *frames), videos=())

    @property
    def videos(self) -> int:
        """The number of different videos so far."""
        return len(self._known)

    def _frames(self, video: VideoRef, count: int, name: str) -> tuple[ImageRef, ...]:
        # Several questions are about one video, and decoding it is most of the work.
        if video.path not in self._known:
            try:
                reader = VideoReader(video.path)
                found = reader.get_batch(places(count, len(reader)))
            except (OSError, VideoError) as error:
                raise InputError(f"The video {video.path} of the question {name} cannot be read: {error}") from error
            self._known[video.path] = tuple(self.images.add(np.ascontiguousarray(frame.asnumpy())) for frame in found)
        return self._known[video.path]


def shown(
    samples: Iterable[Sample], value: int | str | None, images: ImageStore, max_images: int, *, whole: bool = True
) -> Iterator[Sample]:
    """Each of the samples with frames; as they are for None. Raises ``InputError`` at the end if none of a ``whole``
    evaluation had a video; a shard may have none."""
    if value is None:
        yield from samples
        return
    frames = UniformFrames(value, images, max_images)
    yield from map(frames, samples)
    if whole and not frames.videos:
        raise InputError(f"eval.frames={value}: none of the questions has a video. Leave it out.")
