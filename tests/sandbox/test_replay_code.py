"""What the host says of claims by real code at its edges: slices, modes, boxes beyond the image, and long chains."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from sandbox_world import World, picture, setup

from vtcli.sandbox.host import verifier
from vtcli.sandbox.types import Operation, OutputImage, Picture, RunLimits, Status

BEFORE = "import cv2, numpy as np\nfrom PIL import Image, ImageOps\na = np.array(image)\n"
BOX = (3.0, 3.0, 30.0, 30.0)
CUT = "image.crop((3, 3, 30, 30))"
TRUE: dict[str, tuple[str, tuple[float, ...]]] = {  # a 64 x 48 picture, and the part of it that is shown
    "negative slices": ("a[-40:-10, -50:-5]", (14, 8, 59, 38)),
    "open negative slices": ("a[-40:, :-5]", (0, 8, 59, 48)),
    "a slice beyond both ends": ("a[-1000:20, -1000:30]", (0, 0, 30, 20)),
    "upside down": ("a[40:10:-1]", (0, 11, 64, 41)),
    "every second row, upside down": ("a[::-2, ::2]", (0, 1, 64, 48)),
    "an axis that comes and goes": ("a[None][0][5:20, 5:20]", (5, 5, 20, 20)),
    "transposed": ("a.transpose(1, 0, 2)[5:20]", (5, 0, 20, 48)),
    "turned by minus three quarters": ("np.rot90(a, -3)", (0, 0, 64, 48)),
    "rows taken": ("np.take(a, range(5, 20), axis=0)", (0, 5, 64, 20)),
    "a part of a part by OpenCV": ("cv2.flip(a[5:40, 6:50][-20:-3, ::-1], 0)", (6, 20, 50, 37)),
    "a box beyond the turned image": ("image.rotate(90, expand=True).crop((0, 0, 64, 48))", (16, 0, 64, 48)),
    "a box of fractions": ("image.crop((0.5, 1.5, 20.5, 30.5))", (0, 2, 20, 30)),
    "a resize of a box of fractions": ("image.resize((20, 20), 0, box=(3.3, 4.4, 40.7, 41.1))", (3.3, 4.4, 40.7, 41.1)),
    "reduced": ("image.reduce((3, 5), (2, 2, 61, 47))", (2, 2, 61, 47)),
    "thirty-one crops": ("step(image, 31)", (0, 0, 64, 48)),
}
CLAIMS = {
    "two hundred crops": "step(image, 200)",
    "a mask": "a[np.arange(48) % 2 == 0]",
    "rows by number": "a[[5, 6, 7]][:, [9, 10]]",
    "other channels": "a[..., ::-1][5:20, 5:20]",
    "rolled": "np.roll(a, 3, axis=1)[5:20]",
    "a palette": "image.convert('P').crop((3, 3, 30, 30))",
    "a palette and back": "image.convert('P').crop((3, 3, 30, 30)).convert('RGB')",
    "grey with alpha": "image.convert('LA').crop((3, 3, 30, 30))",
    "16 bits": "image.convert('L').convert('I;16').crop((3, 3, 30, 30))",
    "one bit": "image.convert('1').crop((3, 3, 30, 30))",
    "corners cut off": "image.rotate(90)",
    "a border, and the crop that takes it off": "ImageOps.expand(image, 5).crop((5, 5, 30, 30))",
    "pasted": f"(b := {CUT}).paste((1, 2, 3), (0, 0, 1, 1)) or b",
    "a pixel by load": f"(b := {CUT}).load().__setitem__((0, 0), (1, 2, 3)) or b",
    "other bytes": f"Image.frombytes('RGB', {CUT}.size, bytes(27 * 27 * 3))",
}
FALSE = {"other bytes in a crop": f"(b := {CUT}).frombytes(bytes(27 * 27 * 3)) or b"}
REFUSED = {
    "resize to nothing": "image.resize((0, 5))",
    "OpenCV to nothing": "cv2.resize(a, (0, 0))",
    "no number": "image.crop((float('nan'), 0, 5, 5))",
    "no end": "image.crop((0, 0, float('inf'), 5))",
}
STEP = "def step(b, n):\n    for _ in range(n):\n        b = b.crop((0, 0, b.width, b.height))\n    return b\n"


@pytest.fixture(scope="module")
def world(strongest: World) -> World:
    return strongest


@pytest.fixture(scope="module")
def found(world: World) -> dict[str, OutputImage]:
    """All sources in one episode, and one replay for all their claims."""
    sources = {name: source for name, (source, _) in TRUE.items()} | CLAIMS | FALSE

    async def go() -> dict[str, OutputImage]:
        episode = await world.pool.open(setup(capture=("result",), persist=False, transactions=False))
        images: list[OutputImage] = []
        for name, source in sources.items():
            result = await episode.run(f"{BEFORE}{STEP}result = {source}")
            assert len(result.images) == 1, (name, result)
            images += result.images
        for name, source in REFUSED.items():
            assert (await episode.run(f"{BEFORE}result = {source}")).status is Status.ERROR, name
        await episode.close()
        return dict(zip(sources, await world.pool.verify(episode.setup.pictures, images), strict=True))

    return world.do(go())


def test_it_is_verified_with_the_box_that_it_shows(found: dict[str, OutputImage], subtests: pytest.Subtests) -> None:
    for name in TRUE:
        with subtests.test(name):
            assert found[name].verified is True, found[name].operations
            assert found[name].operations[-1].box == pytest.approx(TRUE[name][1])


def test_it_stays_a_claim(found: dict[str, OutputImage], subtests: pytest.Subtests) -> None:
    for name in CLAIMS:
        with subtests.test(name):
            assert found[name].verified is None, found[name].operations


def test_pixels_that_were_changed_behind_the_recorder_are_seen(found: dict[str, OutputImage]) -> None:
    assert [found[name].verified for name in FALSE] == [False]


def claim(name: str, **arguments: Any) -> tuple[Operation, ...]:
    return (Operation(name, arguments, "pil", 0),)


def test_a_picture_of_one_column_and_forty_thousand_rows(world: World) -> None:
    """Boxes are told up to 32 768; what lies beyond is a claim, and nothing fails."""
    tall = picture(1, 40_000)
    images = [
        OutputImage(tall.pixels[::-1].copy(), "show", operations=claim("flip", axis="vertical")),
        OutputImage(np.rot90(tall.pixels, -1).copy(), "show", operations=claim("rotate", degrees=90)),
        OutputImage(tall.pixels[30_000:32_000].copy(), "show", operations=claim("crop", box=[0, 30_000, 1, 32_000])),
        OutputImage(tall.pixels[33_000:39_000].copy(), "show", operations=claim("crop", box=[0, 33_000, 1, 39_000])),
    ]
    found = world.do(world.pool.verify([tall], images))
    assert [image.verified for image in found] == [True, True, True, None]


def test_replays_that_allocate_much_are_killed_apart_from_the_host(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen claims of 33 million pixels each from a picture of one pixel, in less memory than they need."""
    monkeypatch.setattr(verifier, "LIMITS", RunLimits(wall_s=20.0, memory_mb=700, source_bytes=2**18))
    grown = (
        Operation("resize", {"size": [32_768, 1024], "resample": 3}, "pil", 0),
        Operation("rotate", {"degrees": 90}, "numpy", 0),
        Operation("resize", {"size": [32_768, 1024], "interpolation": 4}, "cv2", 0),
        Operation("resize", {"size": [1, 1], "resample": 0}, "pil", 0),
    )
    pixel = picture(1, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = world.do(world.pool.verify([pixel], [OutputImage(pixel.pixels, "show", operations=grown)] * 16))
    assert {image.verified for image in found} <= {None, True}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    assert world.runs("print('well')")[0].output == "well\n"


FORGED = [
    claim("crop", box=[float("nan"), 0, 5, 5]),
    claim("crop", box=[0, 0, float("inf"), 5]),
    claim("crop", box=[0, 0, 5]),
    claim("crop", box=[False, False, True, True]),
    claim("crop", box=[5, 5, 5, 9]),
    claim("resize", size=[0, 5]),
    claim("resize", size=[5, -1]),
    claim("resize", size=[5, 2.5]),
    claim("rotate", degrees=-90),
    claim("rotate", degrees=450),
    claim("rotate", degrees=90.0000001),
    (*claim("rotate", degrees=90), *claim("crop", box=[0, 0, 64, 48])),  # beyond 48 x 64
    claim("crop", box=[0, 0, 5, 5]) * 33,
]


def test_forged_arguments_are_no_plan(world: World, subtests: pytest.Subtests) -> None:
    for chain in FORGED:
        with subtests.test(str(chain)):
            opened = world.pool.stats.opened
            given = picture()
            (found,) = world.do(
                world.pool.verify([Picture(given.pixels)], [OutputImage(given.pixels, "show", operations=chain)])
            )
            assert found.verified is None and world.pool.stats.opened == opened
