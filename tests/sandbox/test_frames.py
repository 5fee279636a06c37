"""Frames and replies: what is sent arrives, and nothing malformed gets through as anything but ProtocolError."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcli.sandbox.protocol import arena, frames, replies
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.protocol.replies import ArenaImage, WorkerReply
from vtcli.sandbox.types import Operation, RunLimits

CROP = Operation("crop", {"box": [1, 2, 30, 40]}, "pil", 0, (1.0, 2.0, 30.0, 40.0))
REPLY = WorkerReply(
    3, "ok", images=(ArenaImage(0, 4, 5, "show", "a.png", (CROP,)),), operations=(CROP,), notes=("dedented",)
)

texts = st.text(max_size=200)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


def frame(**fields: object) -> bytes:
    """A reply's frame with some fields replaced; a field that is ``...`` is left out."""
    header = json.loads(replies.encode(REPLY).split(b"\n")[0]) | fields
    return json.dumps({k: v for k, v in header.items() if v is not ...}).encode() + b"\n"


def test_a_reply_arrives_as_it_was_sent() -> None:
    assert replies.parse(replies.encode(REPLY)) == REPLY


MALFORMED = [
    b"",
    b"\n",
    b"{}",
    b"{}\n",
    b"[]\n",
    b"[" * 60_000 + b"\n",
    b'{"a":' * 9000 + b"1" + b"}" * 9000 + b"\n",
    frame(seq=float("nan")),
    frame(seq=float("inf")),
    frame(seq="1"),
    frame(seq=True),
    frame(seq=-1),
    frame(seq=1).replace(b'"seq": 1', b'"seq": ' + b"9" * 40_000),
    frame(seq=1).replace(b'"seq": 1', b'"seq": 1e999'),
    frame(seq=1).replace(b'"seq": 1', b'"seq": 1, "seq": 2'),
    frame(kind="root"),
    frame(kind=None),
    frame(kind=...),
    frame(extra=1),
    frame(error="\ud800"),
    frame(error="x" * 70_000),
    frame(error=3),
    frame(blobs=[1]),
    frame(blobs=[-1, 1]),
    frame(blobs=[2**70]),
    frame(blobs="0"),
    frame() + b"x",
    frame(images=[[0, 100_000_000, 1, "show", "", []]]),
    frame(images=[[-1, 1, 1, "show", "", []]]),
    frame(images=[[0, 0, 1, "show", "", []]]),
    frame(images=[[0, 1, 1, "passwd", "", []]]),
    frame(images=[[0, 1, 1, "show", "", [["crop", {}, "os", None, None]]]]),
    frame(images=[[0, 1.5, 1, "show", "", []]]),
    frame(operations=[["crop", {"a": {"b": 1}}, "pil", None, None]]),
    frame(operations=[["crop", {"a": [[[[[[[[[[1]]]]]]]]]]}, "pil", None, None]]),
    frame(operations=[["crop", {}, "pil", None, [0, 0, 1]]]),
    frame(operations=[["crop", {}, "pil", -1, None]]),
    frame(operations=[["crop", {}, "pil", 0, [0, 0, 1, 10**400]]]),
    frame(operations=[["crop", {}, "pil", 0, [0, 0, 1, 7.5]]]).replace(b"7.5", b"1e999"),
    frame(operations=[["crop", {}, "pil", 0, [0, 0, 1, 7.5]]]).replace(b"7.5", b"-Infinity"),
    frame(operations=[["crop", {"box": 7.5}, "pil", 0, None]]).replace(b"7.5", b"1e999"),
    frame(operations=[["crop", {"box": [2**53]}, "pil", 0, None]]),
    frame(operations=[["crop", {}, [], 0, None]]),
    frame(images=[[0, 1, 1, [], "", []]]),
    frame(operations=[["crop", {}, "pil", 0, None]] * 300),
    frame(operations=[0]),
    frame(images=[[0, 1, 1, "show", "", [1]]]),
    frame(images=[[0, 1, 1, "show", "", [-1]]]),
    frame(images=[[0, 1, 1, "show", "", [False]]]),
    frame(images=[[0, 1, 1, "show", "", [0] * 300]]),
    frame(notes={"a": 1}),
    b"\xff\xfe{}\n",
]


def test_a_malformed_reply_is_a_protocol_error(subtests: pytest.Subtests) -> None:
    for data in MALFORMED:
        with subtests.test(repr(data[:60])), pytest.raises(ProtocolError):
            replies.parse(data)


@given(st.binary(max_size=4096))
@settings(max_examples=100)
def test_no_bytes_do_anything_else(data: bytes) -> None:
    for candidate in (data, data + b"\n", b'{"blobs":[],"seq":1}\n' + data):
        with pytest.raises(ProtocolError):
            replies.parse(candidate)


@given(st.dictionaries(st.sampled_from(["seq", "kind", "error", "images", "operations", "notes", "value", "x"]), plain))
@settings(max_examples=100)
def test_no_json_does_anything_else(fields: dict[str, object]) -> None:
    try:
        data = frame(**fields)
        reply = replies.parse(data)
    except ProtocolError:
        return
    assert reply.kind in replies.KINDS and 0 <= reply.seq < 2**53


@given(
    st.text(max_size=3000),
    st.lists(
        st.builds(
            Operation,
            st.sampled_from(["crop", "rotate"]),
            st.dictionaries(texts, plain, max_size=4),
            st.sampled_from(["pil", "cv2"]),
        ),
        max_size=400,
    ),
    st.lists(texts, max_size=400),
)
@settings(max_examples=100)
def test_whatever_a_harness_says_can_be_sent(text: str, operations: list[Operation], notes: list[str]) -> None:
    """Surrogates, NaN, nested objects and too much of everything are cut, never an error of the worker's."""
    sent = WorkerReply(1, "error", error=text + "\ud800", value=text, operations=tuple(operations), notes=tuple(notes))
    got = replies.parse(replies.encode(sent))
    assert got.error.endswith("\ufffd")
    assert len(got.operations) <= len(operations)


def test_a_guard_acts_on_no_other_outline(subtests: pytest.Subtests) -> None:
    for data in [frame(seq="1"), frame(seq=-1), frame(kind="root"), frame(seq=10**17), frame(images=1)]:
        with subtests.test(repr(data)):
            header, _ = frames.unpack(data)
            with pytest.raises(ProtocolError):
                replies.outline(header)


def test_a_guard_acts_on_what_the_host_reads() -> None:
    for reply in (REPLY, WorkerReply(9, "no_output")):
        header, _ = frames.unpack(replies.encode(reply))
        outline = replies.outline(header)
        assert (outline.seq, outline.kind, outline.images) == (reply.seq, reply.kind, bool(reply.images))
    twice = replies.encode(REPLY).replace(b"{", b'{"seq":3,"kind":"ok","images":[],', 1)
    with pytest.raises(ProtocolError):
        frames.unpack(twice)


def test_descriptors_that_were_not_asked_for_are_closed_and_refused() -> None:
    a, b = frames.pair()
    before = len(list(Path("/proc/self/fd").iterdir()))
    fd = os.open("/dev/null", os.O_RDONLY)
    frames.send(a, {"x": 1}, (), [fd] * 20)
    os.close(fd)
    with pytest.raises(ProtocolError):
        frames.receive(b, 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    frames.send(a, {"x": 1}, [b"abc"], [b.fileno()])
    got = frames.receive(b, 1)
    assert got is not None and got.blobs == (b"abc",) and len(got.fds) == 1
    os.close(got.fds[0])
    a.close()
    assert frames.receive(b) is None
    b.close()


def test_a_frame_of_the_largest_size_goes_through_and_a_larger_one_is_refused() -> None:
    a, b = frames.pair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    frames.send(a, {"x": 1}, [b"a" * (frames.FRAME_BYTES - 100)])
    got = frames.receive(b)
    assert got is not None and got.pid == os.getpid() and len(got.blobs[0]) == frames.FRAME_BYTES - 100
    with pytest.raises(ProtocolError):
        frames.send(a, {"x": 1}, [b"a" * frames.FRAME_BYTES])
    a.close()
    b.close()


def test_images_go_through_the_arena_and_one_beyond_its_end_is_refused() -> None:
    fd = arena.create()
    images = [np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3), np.full((500, 700, 3), 9, np.uint8)]
    offsets = arena.put(fd, images, 1 << 21)
    placed = [ArenaImage(o, i.shape[1], i.shape[0], "show") for o, i in zip(offsets, images, strict=True)]
    for copy, image in zip(arena.take(fd, placed), images, strict=True):
        assert np.array_equal(copy, image)
        assert copy.flags.owndata and copy.flags.writeable
    for offset in (offsets[1] + 5, 1 << 21, 1 << 40):
        with pytest.raises(ProtocolError):
            arena.take(fd, [ArenaImage(offset, 700, 500, "show")])
    assert arena.put(fd, images, 20) == [0]  # the second does not fit
    arena.empty(fd)
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)


def test_nobody_can_seal_what_a_worker_writes() -> None:
    for fd in (arena.create(), arena.create_output()):
        for seal in (fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK):
            with pytest.raises(PermissionError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
        os.close(fd)


def test_images_beyond_the_limits_are_refused(subtests: pytest.Subtests) -> None:
    for image in [ArenaImage(0, 9000, 10, "show"), ArenaImage(0, 2, 8000, "show"), ArenaImage(2**39, 10, 10, "show")]:
        with subtests.test(str(image)):
            with pytest.raises(ProtocolError):
                arena.check([image], RunLimits())
            with pytest.raises(ProtocolError):
                arena.check([ArenaImage(0, 1, 1, "show")] * 17, RunLimits())


def test_sealed_pixels_cannot_be_written_and_are_shared_until_the_array_is_gone() -> None:
    pixels = np.full((4, 5, 3), 7, np.uint8)
    store = arena.SealedPixels()
    own, mine = store.fd(pixels)
    assert mine
    os.close(own)
    pixels.flags.writeable = False
    fd, mine = store.fd(pixels)
    assert not mine and store.fd(pixels)[0] == fd
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(fd, b"x", 0)
    seen = arena.mapped(fd, 4, 5)
    assert np.array_equal(seen, pixels) and not seen.flags.writeable
    del pixels
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
