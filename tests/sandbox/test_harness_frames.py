"""Frames read from a video, and what was made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import pytest
from av.video.stream import VideoStream
from harness_process import Player, scene

from vtcli.sandbox.replay.plan import CannotTell, plan

FRAMES = 12


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write(path)
    return str(path)


def write(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for number in range(FRAMES):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(scene(160, 120, seed=number), format="rgb24")))
        container.mux(stream.encode())


def frames(play: Player, clip: str, source: str) -> Any:
    head = "import numpy as np\nimport matplotlib.pyplot as plt\nfrom PIL import Image\nv = video_clue_0\n"
    ran = play.one(head + source, videos={"video_clue_0": clip}, capture=("show", "value"))
    assert ran.executed.kind == "ok", ran.executed.error
    assert not ran.troubles
    return ran.executed


def test_frames_that_were_read_are_recorded_in_order(play: Player, clip: str) -> None:
    source = "a = v[3]\nb = v.get_batch([9, 2])\nc = v[0:6:3]\nprint(len(v))"
    read = frames(play, clip, source).operations
    assert [(o.name, o.library, o.arguments["indices"]) for o in read] == [
        ("frames", "video", [3]),
        ("frames", "video", [9, 2]),
        ("frames", "video", [0, 3]),
    ]
    assert {o.arguments["video"] for o in read} == {"video_clue_0"}


MADE_OF_FRAMES = [
    ("v[3]", [("frames", [3])]),
    ("v.get_batch([9, 2])[1]", [("frames", [2])]),
    ("v.get_batch([9, 2]).asnumpy()[0, 10:50, 20:90]", [("frames", [9]), ("crop", None)]),
    ("Image.fromarray(v[5].asnumpy()).rotate(90)", [("frames", [5]), ("rotate", None)]),
    ("plt.imshow(v[7])\nplt.show()", [("frames", [7]), ("other", None)]),
    ("plt.imshow(v[7][10:50])\nplt.axis('off')\nplt.show()", [("frames", [7]), ("crop", None), ("other", None)]),
]


def test_an_image_made_of_a_frame_names_it(play: Player, clip: str, subtests: pytest.Subtests) -> None:
    for source, chain in MADE_OF_FRAMES:
        with subtests.test(source):
            image = frames(play, clip, source).images[-1]
            assert [(o.name, o.arguments.get("indices")) for o in image.operations] == chain
            assert {o.image for o in image.operations} == {None}
            with pytest.raises(CannotTell):  # no video is decoded again
                plan(image.operations, [(160, 120)])
