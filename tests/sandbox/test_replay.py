"""The plan of a claimed chain, against claims that no recorder would make, and the verifier that carries it out."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from typing import Any

import numpy as np
import pytest
from harness_process import scene
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox_world import World

from vtcli.sandbox.host import verifier
from vtcli.sandbox.host.episode import PooledEpisode
from vtcli.sandbox.replay import redo
from vtcli.sandbox.replay.plan import LONGEST, MOST_PIXELS, CannotTell, plan
from vtcli.sandbox.types import (
    OVER,
    EpisodeLostError,
    Operation,
    OutputImage,
    Picture,
    RunLimits,
    RunResult,
    Setup,
    Status,
)

PICTURE = scene(64, 48)
SIZES = [(64, 48), (64, 9)]
numbers = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(-1e6, 1e6),
    st.sampled_from([0, 1, 2, 90, 32, 64, 48, float("inf"), float("nan"), 10**18]),
)
words = st.sampled_from(["horizontal", "vertical", "swap", "unchanged", "lossy", "sandbox", "<unknown x>", ""])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words), lambda inner: st.lists(inner, max_size=6), max_leaves=12
)
names = st.sampled_from(
    [
        *("box", "degrees", "resample", "expand", "center", "fill", "axis", "size", "factor", "thumbnail", "kind"),
        *("every", "interpolation", "fx", "fy", "reducing_gap", "requested", "by", "matrix"),
    ]
)
operations = st.builds(
    Operation,
    st.sampled_from(["rotate", "flip", "crop", "resize", "warp", "colour", "other"]),
    st.dictionaries(names, values, max_size=6),
    st.sampled_from(["pil", "numpy", "cv2", "matplotlib", "video"]),
    st.just(0),
    st.none(),
)


@settings(max_examples=60)
@given(st.lists(operations, min_size=1, max_size=4))
def test_no_claim_makes_the_host_fail_or_plans_what_is_too_large(chain: list[Operation]) -> None:
    try:
        found = plan(chain, SIZES)
    except CannotTell:
        return
    assert len(found.operations) == len(chain)
    assert 0 < found.size[0] * found.size[1] <= MOST_PIXELS


def operation(name: str, library: str = "pil", image: int | None = 0, **arguments: Any) -> Operation:
    return Operation(name, arguments, library, image)


UNTOLD = [
    [],
    [operation("crop", box=[0, 0, 64, 48], image=None)],
    [operation("crop", box=[0, 0, 64, 48], image=2)],
    [operation("crop", box=[0, 0, 64, 48]), operation("crop", box=[0, 0, 64, 48], image=1)],
    [operation("crop", box=[0, 0, 64, 48])] * (LONGEST + 1),
    [operation("crop", box=[-1, 0, 64, 48])],
    [operation("crop", box=[0, 0, 64, 49])],
    [operation("crop", box=[0, 0, float("nan"), 48])],
    [operation("crop", "video", box=[0, 0, 64, 48])],
    [operation("resize", size=[30000, 30000])],
    [operation("resize", "cv2", size=[32, 24], interpolation=1, fx=2.0, fy=2.0)],
    [operation("resize", "numpy", size=[64, 48], every=[2, 2])],
    [operation("resize", size=[32, 24], by="sandbox")],
    [operation("resize", size=[128, 96], by="sandbox")],  # the code's own zoom: signals would pass over it
    [operation("crop", box=[0, 0, 20, 10]), operation("resize", size=[56, 30], by="sandbox")],
    [
        operation("crop", box=[0, 0, 20, 10]),
        operation("resize", size=[56, 28], by="sandbox"),
        operation("flip", axis="vertical"),
    ],
    [operation("rotate", degrees=45)],
    [operation("rotate", degrees=90, resample=0)],  # cuts corners off
    [operation("rotate", "numpy", degrees=90, expand=True)],  # scipy.ndimage.rotate, which interpolates
    [operation("resize", "numpy", size=[32, 24])],  # scipy.ndimage.zoom
    [operation("rotate", degrees=90, matrix=[[1, 0, 0], [0, 1, 0]])],
    [operation("other", kind="lossy", format="jpg")],
    [operation("other", kind="figure", axes=[0, 0, 64, 48], images=1)],
    [operation("other", kind="unchanged"), operation("crop", box=[0, 0, 64, 48])],
    [operation("colour", "cv2", conversion="BGR2RGB")],
    [operation("warp", "cv2", kind="affine", matrix=[[1e6, 0, 0], [0, 1e6, 0]], size=[64, 48], flags=1, border=2)],
    [operation("draw", kind="line", xy=[0, 0, 9, 9])],
    [operation("frames", "video", indices=[0])],
    [operation("filter", kind="GaussianBlur", radius=10**9)],
    [operation("enhance", kind="contrast", factor=1.0)],
]


def test_what_rewards_do_not_use_is_not_planned(subtests: pytest.Subtests) -> None:
    for chain in UNTOLD:
        with subtests.test(str(chain)), pytest.raises(CannotTell):
            plan(chain, SIZES)


def test_a_box_follows_from_turn_flip_crop_and_zoom() -> None:
    # 64 x 48 turned clockwise is 48 x 64: its left upper corner was the left lower one. Mirrored, it was the upper left
    # one with x and y exchanged: (x, y) shows (y, x). So (4, 8)-(24, 40) shows x 8..40, y 4..24.
    chain = [
        operation("rotate", "numpy", degrees=90),
        operation("flip", "numpy", axis="horizontal"),
        operation("crop", "numpy", box=[4, 8, 24, 40]),
        operation("resize", "cv2", size=[40, 64], interpolation=0),
    ]
    found = plan(chain, SIZES)
    assert found.operations[-1].box == (8, 4, 40, 24)
    shown = redo.redo(PICTURE, found.steps)
    assert np.array_equal(shown, PICTURE[4:24, 8:40].swapaxes(0, 1).repeat(2, 0).repeat(2, 1))


def test_what_the_sandbox_enlarges_is_planned() -> None:
    """20 x 10 shown with sides of 28 at least, as ``harness.capture`` does it."""
    chain = [operation("crop", box=[0, 0, 20, 10]), operation("resize", size=[56, 28], resample=3, by="sandbox")]
    assert plan(chain, SIZES).size == (56, 28)


def test_a_thumbnail_that_was_stored_without_its_gap_has_the_default() -> None:
    found = plan([operation("resize", size=[8, 6], thumbnail=[8, 8], resample=3)], SIZES)
    assert found.steps == (["pil_resize", 8, 6, 3, None, 2.0],)


CROP = (operation("crop", box=[5, 10, 45, 30]),)


def test_the_verifier_says_true_false_or_nothing(strongest: World) -> None:
    cut = PICTURE[10:30, 5:45].copy()
    given = [
        OutputImage(cut, "show", operations=CROP),
        OutputImage(cut, "show", operations=(operation("crop", box=[6, 10, 46, 30]),)),
        OutputImage(cut[1:], "show", operations=CROP),  # of another size
        OutputImage(cut, "show", operations=(*CROP, operation("draw", kind="line"))),
        OutputImage(cut, "show"),
    ]
    found = strongest.do(strongest.pool.verify([Picture(PICTURE)], given))
    assert [image.verified for image in found] == [True, False, False, None, None]
    assert [o.box for image in found[:1] for o in image.operations] == [(5, 10, 45, 30)]
    assert all(a.pixels is b.pixels for a, b in zip(found, given, strict=True))


def test_a_faint_drawing_on_an_untouched_crop_is_seen(strongest: World, subtests: pytest.Subtests) -> None:
    """Defect 28: there is no tolerance, for lossy formats either."""
    for levels in [1, 16]:
        with subtests.test(f"{levels} levels"):
            written = PICTURE[10:30, 5:45].copy()
            written[4:9:2, 3:30] += levels
            lossy = (*CROP, operation("other", kind="lossy", format="jpg"))
            found = strongest.do(
                strongest.pool.verify(
                    [Picture(PICTURE)], [OutputImage(written, "show", operations=o) for o in (CROP, lossy)]
                )
            )
            assert [image.verified for image in found] == [False, None]


ENDLESS = [
    operation(
        "resize", "pil" if n % 2 else "cv2", size=[5600 + n, 5900], **{"resample" if n % 2 else "interpolation": 1}
    )
    for n in range(LONGEST - 1)
]


def test_a_claim_that_takes_too_long_is_killed_and_the_trainer_goes_on(
    strongest: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: nothing is done again in the host's process, on no thread of it, and a clock ends it."""
    monkeypatch.setattr(verifier, "LIMITS", RunLimits(wall_s=1.0, cpu_s=1.0, source_bytes=2**18))
    monkeypatch.setattr(verifier, "MOST_WORK", 2**40)
    monkeypatch.setattr(importlib.import_module("vtcli.sandbox.replay.plan"), "MOST_WORK", 2**40)
    image = OutputImage(PICTURE, "show", operations=(*ENDLESS, operation("resize", size=[64, 48], resample=1)))
    before, used, started = threading.active_count(), time.process_time(), time.monotonic()
    found = strongest.do(strongest.pool.verify([Picture(PICTURE)], [image] * 3))
    assert [each.verified for each in found] == [None] * 3
    assert time.monotonic() - started < 15
    assert time.process_time() - used < 1 and threading.active_count() == before
    assert strongest.runs("print('well')")[0].output == "well\n"


def test_a_slow_claim_hides_no_false_one(strongest: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A black image, claimed as a crop, beside claims that take longer than there is time, or than is tried at all."""
    monkeypatch.setattr(verifier, "LIMITS", RunLimits(wall_s=1.0, cpu_s=1.0, source_bytes=2**18))
    black = OutputImage(np.zeros((20, 40, 3), np.uint8), "show", operations=CROP)
    slow = [operation("resize", size=[5790, 5790], resample=3), operation("resize", size=[64, 48], resample=3)]
    claims = [*(OutputImage(PICTURE, "show", operations=tuple(slow)) for _ in range(40)), black]
    endless = OutputImage(PICTURE, "show", operations=(*ENDLESS, operation("resize", size=[64, 48], resample=1)))
    found = strongest.do(strongest.pool.verify([Picture(PICTURE)], [*claims, endless]))
    assert found[-2].verified is False
    assert found[-1].verified is None and found[-3].verified is None


def test_a_claim_that_takes_too_much_memory_is_nothing(strongest: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "LIMITS", RunLimits(wall_s=20.0, memory_mb=800, source_bytes=2**18))
    image = OutputImage(PICTURE, "show", operations=(*ENDLESS[:2], operation("resize", size=[64, 48], resample=1)))
    (found,) = strongest.do(strongest.pool.verify([Picture(PICTURE)], [image]))
    assert found.verified is None


def test_nothing_is_started_for_claims_that_cannot_be_tested(strongest: World) -> None:
    opened = strongest.pool.stats.opened
    image = OutputImage(PICTURE, "show", operations=tuple(UNTOLD[-1]))
    (found,) = strongest.do(strongest.pool.verify([Picture(PICTURE)], [image]))
    assert found is image and strongest.pool.stats.opened == opened


def test_a_pool_that_is_full_can_still_verify() -> None:
    """Or episodes that all wait for a verification would wait for ever."""
    from vtcli.sandbox.host.pool import PoolConfig

    world = World(PoolConfig(active=1, live=1))
    try:
        episode = world.open(capture=("result",))
        result = world.do(episode.run("result = image.crop((1, 2, 30, 40))"))
        (image,) = world.do(world.pool.verify(episode.setup.pictures, result.images))
        assert image.verified is True and world.pool.stats.peak_live == 2
    finally:
        world.close()


class Ending:
    """An episode whose run ends as told."""

    def __init__(self, status: Status) -> None:
        self.status, self.closed = status, False

    async def run(self, source: str) -> RunResult:
        return RunResult(self.status, error="gone")

    async def close(self) -> None:
        self.closed = True


def ended(status: Status) -> OutputImage:
    """A true claim whose replay ends so."""
    episode: Any = Ending(status)

    async def opened(setup: Setup) -> PooledEpisode:
        return episode

    image = OutputImage(PICTURE[10:30, 5:45].copy(), "show", operations=CROP)
    try:
        (found,) = asyncio.run(verifier.verified(opened, [Picture(PICTURE)], [image]))
    finally:
        assert episode.closed
    return found


def test_a_replay_that_we_lost_is_no_verdict_on_a_claim(subtests: pytest.Subtests) -> None:
    for status in sorted(OVER):
        with subtests.test(str(status)), pytest.raises(EpisodeLostError, match=status):
            ended(status)


def test_a_replay_beyond_its_limits_leaves_a_claim(subtests: pytest.Subtests) -> None:
    for status in [Status.TIMEOUT, Status.OOM, Status.ERROR, Status.LIMIT, Status.CRASH]:
        with subtests.test(str(status)):
            assert ended(status).verified is None


def test_a_replay_that_cannot_start_is_no_verdict_on_a_claim() -> None:
    async def opened(setup: Setup) -> PooledEpisode:
        raise EpisodeLostError("an episode of the sandbox did not start")

    with pytest.raises(EpisodeLostError, match="did not start"):
        asyncio.run(verifier.verified(opened, [Picture(PICTURE)], [OutputImage(PICTURE, "show", operations=CROP)]))
