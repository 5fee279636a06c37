"""Uniform frames: which ones, that they are the video's own pixels, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each_case
from fakes import make_sample, native_card

from vtcli.config.bounds import OutOfBounds
from vtcli.data.generators.film import Clip, encode
from vtcli.envs import video_frames
from vtcli.envs.video_frames import FrameChoice, UniformFrames, places, shown
from vtcli.errors import ConfigError, InputError
from vtcli.schema import Sample
from vtcli.store.images import ImageStore

CLIP = Clip(np.stack([np.full((56, 84, 3), 20 * k, np.uint8) for k in range(10)]), 2)


def filmed(folder: Path) -> Sample:
    path = folder / "clip.mkv"
    path.write_bytes(encode(CLIP))
    return replace(make_sample(ImageStore(folder / "store")), videos=(CLIP.ref(str(path)),))


@each_case("count", [1, 2, 7, 8, 32])
@each_case("frames", [1, 5, 32, 33, 5130])
def test_places_are_those_of_the_kits_without_repeats(count: int, frames: int) -> None:
    kits = np.linspace(0, frames - 1, count, dtype=int)  # VSI-Bench's code, lmms-eval's vsibench
    assert places(count, frames) == sorted(set(kits.tolist()))
    assert len(places(count, frames)) == min(count, frames)


def test_the_frames_are_the_videos_own_pixels_after_the_images_in_its_place(tmp_path: Path) -> None:
    images, sample = ImageStore(tmp_path / "store"), filmed(tmp_path)
    (made,) = shown([sample], 4, images, 16)
    assert made.videos == () and made.images[:1] == sample.images
    assert made.question == f"These are frames of a video.\n{sample.question}"
    pixels = [images.full(ref) for ref in made.images[1:]]
    assert [int(one[0, 0, 0]) for one in pixels] == [0, 60, 120, 180]
    assert all(np.array_equal(one, CLIP.frames[k]) for one, k in zip(pixels, (0, 3, 6, 9), strict=True))
    assert replace(made, images=sample.images, videos=sample.videos, question=sample.question) == sample


@each_case(("value", "count"), [(4, 4), (32, 10), ("2fps", 10), ("1fps", 5), ("0.5fps", 2), ("0.1fps", 1)])
def test_a_number_or_a_rate_of_frames(tmp_path: Path, value: int | str, count: int) -> None:
    made = UniformFrames(value, ImageStore(tmp_path / "store"), 16)(filmed(tmp_path))  # 10 frames in 5 s
    assert len(made.images) == 1 + count


@each_case("value", [0, -1, 1.5, "0fps", "fps", "1 fps", "many", ""])
def test_what_is_neither_is_refused(value: int | str) -> None:
    with pytest.raises(OutOfBounds, match="must be a number of frames, say 32, or a rate, say 1fps"):
        FrameChoice.read(value)


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    images, sample = ImageStore(tmp_path / "store"), filmed(tmp_path)
    with pytest.raises(InputError, match=r"eval\.frames=2fps, question zoom-test-000000 .*limits\.max_images=11"):
        UniformFrames("2fps", images, 10)(sample)
    with pytest.raises(InputError, match=r"eval\.frames=4: none of the questions has a video"):
        list(shown([replace(sample, videos=())], 4, images, 16))
    assert len(list(shown([replace(sample, videos=())], 4, images, 16, whole=False))) == 1  # a shard without one
    Path(sample.videos[0].path).write_bytes(b"no video")
    with pytest.raises(InputError, match=r"clip\.mkv of the question zoom-test-000000 cannot be read"):
        UniformFrames(4, images, 16)(sample)
    Path(sample.videos[0].path).unlink()
    with pytest.raises(InputError, match=r"clip\.mkv of the question zoom-test-000000 cannot be read"):
        UniformFrames(4, images, 16)(sample)
    card = native_card()
    video_frames.require(16, card, 16, offered=True)
    with pytest.raises(ConfigError, match=r"eval\.frames=17 and eval\.agent\.limits\.max_images=16: .*max_images=17"):
        video_frames.require(17, card, 16, offered=False)
    shows = replace(card, videos=True)
    video_frames.require(4, shows, 16, offered=False)
    with pytest.raises(ConfigError, match=r"shows videos by code\. Set eval\.tools=none"):
        video_frames.require(4, shows, 16, offered=True)
