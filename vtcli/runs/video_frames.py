"""Uniform frames of videos in the context: the usual baseline of video benchmarks, without code that fetches frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

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


def require(count: int | None, card: EnvCard, max_images: int, *, offered: bool) -> None:
    """Raises ``ConfigError`` where frames do not fit, or where the environment's own prompt speaks of the video."""
    if count is None:
        return
    if count > max_images:
        raise ConfigError(
            f"eval.frames={count} and eval.limits.max_images={max_images}: so many images do not fit. Set "
            f"eval.limits.max_images={count}, and images.max_pixels so that eval.limits.max_tokens has room"
        )
    if card.videos and offered:
        raise ConfigError(
            f"eval.frames={count}: the environment {card.name} shows videos by code. Set eval.tools=none to ask with "
            "frames in the context, or leave eval.frames out"
        )


@dataclass
class UniformFrames:
    """Makes images out of the videos of samples: ``count`` frames of each, in place of the video."""

    count: int
    images: ImageStore
    _known: dict[str, tuple[ImageRef, ...]] = field(default_factory=dict[str, tuple[ImageRef, ...]], init=False)

    def __call__(self, sample: Sample) -> Sample:
        """The sample with frames, after its images. One without videos stays as it is.

        Raises:
            InputError: a video that cannot be read.
        """
        if not sample.videos:
            return sample
        frames = [ref for video in sample.videos for ref in self._frames(video, sample.id)]
        question = f"{SAID}\n{sample.question}"
        return replace(sample, question=question, images=(*sample.images, *frames), videos=())

    def shown(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Each of the samples with frames. Raises ``InputError`` at the end where none had a video."""
        yield from map(self, samples)
        if not self._known:
            raise InputError(f"eval.frames={self.count}: none of the questions has a video. Leave it out.")

    def _frames(self, video: VideoRef, name: str) -> tuple[ImageRef, ...]:
        if video.path not in self._known:
            try:
                reader = VideoReader(video.path)
                found = reader.get_batch(places(self.count, len(reader)))
            except (OSError, VideoError) as error:
                raise InputError(f"The video {video.path} of the question {name} cannot be read: {error}") from error
            self._known[video.path] = tuple(self.images.add(np.ascontiguousarray(frame.asnumpy())) for frame in found)
        return self._known[video.path]
