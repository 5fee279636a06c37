"""What the host makes of a guard's answer, whatever bytes, lengths and files are in it: a result, or ``protocol``."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox_world import descriptors, picture

from vtcli.sandbox.host.episode import Descriptors, PooledEpisode
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.protocol import frames
from vtcli.sandbox.protocol.arena import SealedPixels
from vtcli.sandbox.protocol.replies import GuardAnswer, parse_answer
from vtcli.sandbox.types import RunResult, Setup, Status

LIMIT = 2**22
numbers = st.one_of(st.integers(-3, 300), st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.none())
plain = st.recursive(
    st.one_of(numbers, st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=12,
)
operation = st.tuples(
    st.sampled_from(["crop", "rotate", "resize", "flip", "draw", "other", "x"]),
    st.dictionaries(st.sampled_from(["box", "degrees", "size", "axis", "kind"]), plain, max_size=3),
    st.sampled_from(["pil", "cv2", "numpy", "nowhere"]),
    st.one_of(st.none(), st.integers(-1, 3)),
    st.one_of(st.none(), st.lists(numbers, min_size=3, max_size=5)),
)
sides = st.one_of(st.integers(1, 40), st.integers(-5, 2**21))
image = st.tuples(
    st.one_of(st.integers(0, 8192), st.integers(-9, 2**41)), sides, sides, st.sampled_from(["show", "files", "x"]),
    st.text(max_size=9), st.lists(operation, max_size=2),
)  # fmt: skip
HONEST: dict[str, Any] = {
    **{"seq": 1, "kind": "ok", "error": "", "value": "", "images": []},
    **{"images_dropped": 0, "operations": [], "notes": []},
}
lists = {"images": st.lists(image, max_size=20), "operations": st.lists(operation)}
replies = st.fixed_dictionaries({}, optional=dict.fromkeys((*HONEST, "more"), plain) | lists).map(
    lambda changed: {**HONEST, **changed}
)


def encoded(reply: dict[str, Any]) -> bytes:
    return json.dumps({**reply, "blobs": []}).encode() + b"\n"


answers = st.builds(
    GuardAnswer,
    st.just(1) | st.integers(0, 2**53 - 1),
    st.sampled_from(Status),
    images=st.booleans(),
    wall_s=st.just(0.1) | st.floats(allow_nan=False, allow_infinity=False),
    signal=st.integers(0, 64),
    error=st.text(max_size=20),
    notes=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    reply=st.one_of(replies.map(encoded), st.binary(max_size=300)),
    output=st.text(max_size=50),
)


class Answering(PooledEpisode):
    """An episode whose guard is the test."""

    def __init__(self, data: bytes) -> None:
        ours, self.theirs = frames.pair()
        pool = Pool(PoolConfig())
        super().__init__(1, ours, Setup(pictures=(picture(),)), pool._around)
        self.data = data

    async def _ask(self, *_: Any) -> frames.Frame:
        """As ``_read`` would have it: what is no frame ends the channel."""
        try:
            header, blobs = frames.unpack(self.data)
        except frames.ProtocolError:
            raise ConnectionResetError("no frame") from None
        return frames.Frame(header, blobs, raw=self.data)


async def result_of(answer: bytes, arena_bytes: int | None) -> RunResult:
    episode = Answering(answer)
    if arena_bytes is not None:
        fd = os.memfd_create("arena")
        os.pwrite(fd, os.urandom(arena_bytes), 0)
        episode._arena = fd
    try:
        return await episode.run("pass")
    finally:
        await episode.close()
        episode.theirs.close()


def test_an_honest_answer_arrives() -> None:
    reply = encoded({**HONEST, "images": [[0, 8, 6, "show", "", []]]})
    answer = GuardAnswer(1, Status.OK, True, 0.1, 0.2, 3.5, 0, "", ("a note",), reply, "täxt")
    result = asyncio.run(result_of(answer.packed(), 4096))
    assert (result.status, result.output, result.notes) == (Status.OK, "täxt", ("a note",))
    assert (result.wall_s, result.cpu_s, result.peak_mb) == (0.1, 0.2, 3.5)
    assert [p.pixels.shape for p in result.images] == [(6, 8, 3)]
    short = asyncio.run(result_of(answer.packed(), 10))
    assert short.status is Status.PROTOCOL, "the arena is shorter than the image"


@settings(max_examples=60)
@given(answers, st.integers(0, 9000))
def test_no_answer_makes_the_host_fail(answer: GuardAnswer, arena: int) -> None:
    before = descriptors()
    result = asyncio.run(result_of(answer.packed(), arena))
    assert isinstance(result, RunResult)
    assert isinstance(result.status, Status)
    for produced in result.images:
        assert produced.pixels.dtype == np.uint8
        assert produced.pixels.ndim == 3
        assert produced.pixels.nbytes < LIMIT
        assert produced.verified is not True or produced.operations
    assert descriptors() == before, "descriptors are closed whatever came"


@given(answers)
def test_an_answer_arrives_as_it_was_sent(answer: GuardAnswer) -> None:
    header, blobs = frames.unpack(answer.packed())
    assert parse_answer(frames.Frame(header, blobs)) == answer


@settings(max_examples=60)
@given(answers, st.integers(0, 400), st.binary(max_size=9), st.none() | st.integers(0, 200), st.none() | st.just(4096))
def test_a_broken_answer_is_a_result_all_the_same(
    answer: GuardAnswer, at: int, other: bytes, cut: int | None, arena: int | None
) -> None:
    data = answer.packed()
    data = (data[:at] + other + data[at + len(other) :])[:cut]
    result = asyncio.run(result_of(data, arena))
    assert isinstance(result, RunResult) and isinstance(result.status, Status)


def test_bytes_that_are_no_frame_lose_the_episode(subtests: pytest.Subtests) -> None:
    for data in [b"", b"A", b"{", b"{}", b"[]\n", b"x" * 200]:
        with subtests.test(repr(data[:9])):
            assert asyncio.run(result_of(data, None)).status is Status.LOST


NO_ANSWERS = [
    frames.pack({}),
    frames.pack({"seq": 1}, [b"", b""]),
    GuardAnswer(2, Status.OK).packed(),
    frames.pack({"times": 1}),
]


def test_a_frame_that_is_no_answer_to_this_run_is_protocol(subtests: pytest.Subtests) -> None:
    for data in NO_ANSWERS:
        with subtests.test(repr(data[:60])):
            assert asyncio.run(result_of(data, None)).status is Status.PROTOCOL


def test_an_arena_is_closed_whenever_the_episode_ends(subtests: pytest.Subtests) -> None:
    """Also when opening is given up after the guard's word was read and before it was looked at."""
    for cancelled in [True, False]:
        with subtests.test(f"{cancelled=}"):

            async def go(cancelled: bool = cancelled) -> None:
                ours, theirs = frames.pair()
                setup = Setup()
                episode = PooledEpisode(1, ours, setup, Pool(PoolConfig())._around)
                opening = asyncio.create_task(episode.begin(Descriptors(setup, SealedPixels()), 5.0))
                await asyncio.sleep(0)
                fd = os.memfd_create("arena")
                frames.send(theirs, {"ready": True}, fds=[fd])
                os.close(fd)
                episode._read()
                if cancelled:
                    opening.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await opening
                else:
                    await opening
                    await episode.close()
                theirs.close()

            before = descriptors()
            asyncio.run(go())
            assert descriptors() == before
