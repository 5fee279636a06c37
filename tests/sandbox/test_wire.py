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
from PIL import Image

from vtcli.sandbox.harness import pixels
from vtcli.sandbox.protocol import arena, replies
from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.protocol.replies import Placed, Reply
from vtcli.sandbox.types import Operation, RunLimits

CROP = Operation("crop", {"box": [1, 2, 30, 40]}, "pil", 0, (1.0, 2.0, 30.0, 40.0))
REPLY = Reply(3, "ok", images=(Placed(0, 4, 5, "show", "a.png", (CROP,)),), operations=(CROP,), notes=("dedented",))

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


@pytest.mark.parametrize(
    "data",
    [
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
    ],
)
def test_a_malformed_reply_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        replies.parse(data)


@given(st.binary(max_size=4096))
@settings(max_examples=300, deadline=None)
def test_no_bytes_do_anything_else(data: bytes) -> None:
    for candidate in (data, data + b"\n", b'{"blobs":[],"seq":1}\n' + data):
        with pytest.raises(ProtocolError):
            replies.parse(candidate)


@given(st.dictionaries(st.sampled_from(["seq", "kind", "error", "images", "operations", "notes", "value", "x"]), plain))
@settings(max_examples=300, deadline=None)
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
@settings(max_examples=100, deadline=None)
def test_whatever_a_harness_says_can_be_sent(text: str, operations: list[Operation], notes: list[str]) -> None:
    """Surrogates, NaN, nested objects and too much of everything are cut, never an error of the worker's."""
    sent = Reply(1, "error", error=text + "\ud800", value=text, operations=tuple(operations), notes=tuple(notes))
    got = replies.parse(replies.encode(sent))
    assert got.error.endswith("\ufffd")
    assert len(got.operations) <= len(operations)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}\n",
        frame(seq="1"),
        frame(seq=-1),
        frame(kind="root"),
        json.dumps({"kind": "ok", "seq": 1, "images": []}).encode(),
        b" " + frame(),
        frame(seq=10**17),
    ],
)
def test_a_guard_hears_only_replies_that_begin_as_they_must(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        replies.heard(data)


def test_what_a_guard_hears_is_what_the_host_reads() -> None:
    for reply in (REPLY, Reply(9, "no_output")):
        heard = replies.heard(replies.encode(reply))
        assert (heard.seq, heard.kind, heard.images) == (reply.seq, reply.kind, bool(reply.images))
    with pytest.raises(ProtocolError):
        replies.parse(replies.encode(REPLY).replace(b"{", b'{"seq":3,"kind":"ok","images":[],', 1))


@given(plain)
def test_json_is_written_as_python_writes_it(value: object) -> None:
    try:
        expected = json.dumps({"a": value}, separators=(",", ":"), allow_nan=False)
    except ValueError:
        with pytest.raises(ValueError, match="compliant"):
            wire.encoded({"a": value})  # pyright: ignore
    else:
        assert wire.encoded({"a": value}) == expected  # pyright: ignore


def test_an_order_arrives_and_no_other_bytes_pass_for_one() -> None:
    source = "print('ä')\n\n".encode()
    assert wire.unpack(wire.order(12, source)) == ({"do": "run", "seq": 12}, (source,))
    for data in (b"run ", b"run \nx", b"run -1\nx", b"run 1.5\nx", b"run " + b"9" * 40_000 + b"\n", "run ²\n".encode()):
        with pytest.raises(ProtocolError):
            wire.unpack(data)
    with pytest.raises(ProtocolError):
        wire.order(1, b"x" * wire.FRAME_BYTES)


def test_descriptors_that_were_not_asked_for_are_closed_and_refused() -> None:
    a, b = wire.pair()
    before = len(list(Path("/proc/self/fd").iterdir()))
    fd = os.open("/dev/null", os.O_RDONLY)
    wire.send(a, {"x": 1}, (), [fd] * 20)
    os.close(fd)
    with pytest.raises(ProtocolError):
        wire.receive(b, 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    wire.send(a, {"x": 1}, [b"abc"], [b.fileno()])
    got = wire.receive(b, 1)
    assert got is not None and got.blobs == (b"abc",) and len(got.fds) == 1
    got.close()
    a.close()
    assert wire.receive(b) is None
    b.close()


def test_a_frame_of_the_largest_size_goes_through_and_a_larger_one_is_refused() -> None:
    a, b = wire.pair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    wire.send(a, {"x": 1}, [b"a" * (wire.FRAME_BYTES - 100)])
    got = wire.receive(b)
    assert got is not None and got.pid == os.getpid() and len(got.blobs[0]) == wire.FRAME_BYTES - 100
    with pytest.raises(ProtocolError):
        wire.send(a, {"x": 1}, [b"a" * wire.FRAME_BYTES])
    a.close()
    b.close()


def test_images_go_through_the_arena_and_one_beyond_its_end_is_refused() -> None:
    fd = arena.create()
    kept = arena.shared(fd)
    images = [np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3), np.full((5, 7, 3), 9, np.uint8)]
    offsets = arena.put(fd, images, 1 << 20, kept)
    placed = [Placed(o, i.shape[1], i.shape[0], "show") for o, i in zip(offsets, images, strict=True)]
    received = arena.Received(os.dup(fd))
    for copies in (arena.take(fd, placed), received.take(placed)):
        for copy, image in zip(copies, images, strict=True):
            assert np.array_equal(copy, image)
            assert copy.flags.owndata and copy.flags.writeable
    for offset in (arena.KEPT - 5, arena.KEPT, 1 << 40):
        for take in (lambda placed: arena.take(fd, placed), received.take):
            with pytest.raises(ProtocolError):
                take([Placed(offset, 7, 5, "show")])
    received.close()
    assert arena.put(fd, images, 20, kept) == [0]  # the second does not fit
    arena.unshared(kept)
    os.close(fd)


def test_nobody_can_shorten_an_arena_or_seal_it_further() -> None:
    """Who maps it would die of a page that is gone, or lose the images of the runs that come."""
    fd = arena.create()
    for act in (
        lambda: os.ftruncate(fd, 0),
        lambda: os.ftruncate(fd, arena.KEPT - 1),
        lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW),
        lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    ):
        with pytest.raises(PermissionError):
            act()
    os.close(fd)


def test_an_arena_that_could_be_shortened_is_read_not_mapped() -> None:
    fd = os.memfd_create("arena")
    os.ftruncate(fd, arena.KEPT)
    received = arena.Received(os.dup(fd))
    os.ftruncate(fd, 0)  # a mapping would end this process
    with pytest.raises(ProtocolError):
        received.take([Placed(0, 7, 5, "show")])
    received.close()
    os.close(fd)


def test_what_an_arena_holds_beyond_what_it_keeps_is_given_back() -> None:
    fd = arena.create()
    kept = arena.shared(fd)
    arena.put(fd, [np.full((1024, 1024, 3), 7, np.uint8)], 1 << 23, kept)
    arena.shrink(fd)
    assert os.fstat(fd).st_blocks * arena.BLOCK == arena.KEPT
    assert kept.all(), "what is kept is not touched"
    end = os.fstat(fd).st_size
    assert arena.LIBC.fallocate(fd, 1, end, 1 << 20) == 0, "memory beyond the end, which the size does not show"
    assert os.fstat(fd).st_size == end and os.fstat(fd).st_blocks * arena.BLOCK == arena.KEPT + (1 << 20)
    arena.shrink(fd)
    assert os.fstat(fd).st_blocks * arena.BLOCK == arena.KEPT
    arena.shrink(fd, 0)
    assert os.fstat(fd).st_blocks == 0
    assert not kept.any()
    arena.unshared(kept)
    os.close(fd)


def test_images_are_whole_on_both_sides_of_what_an_arena_keeps() -> None:
    dice = np.random.default_rng(0)
    fd = arena.create()
    kept = arena.shared(fd)
    received = arena.Received(os.dup(fd))
    for rows in (100, 700, 400):  # 1024 x 3 bytes each: one ends before the border, one lies across it, one beyond
        images = [dice.integers(0, 256, (rows, 1024, 3), np.uint8) for _ in range(2)]
        offsets = arena.put(fd, images, 1 << 23, kept)
        placed = [Placed(o, 1024, rows, "show") for o in offsets]
        for copies in (arena.take(fd, placed), received.take(placed)):
            for copy, image in zip(copies, images, strict=True):
                assert np.array_equal(copy, image)
        arena.shrink(fd, 0)
    received.close()
    arena.unshared(kept)
    os.close(fd)


def test_an_image_that_was_made_in_the_arena_is_not_written_again() -> None:
    fd = arena.create()
    kept = arena.shared(fd)
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (50, 60, 3), np.uint8))
    made = pixels.of_pil(image, kept)
    assert np.shares_memory(made, kept) and np.array_equal(made, np.asarray(image))
    other = np.full((5, 7, 3), 9, np.uint8)
    offsets = arena.put(fd, [made, other], 1 << 20, kept)
    placed = [Placed(offsets[0], 60, 50, "show"), Placed(offsets[1], 7, 5, "show")]
    first, second = arena.take(fd, placed)
    assert np.array_equal(first, np.asarray(image)) and np.array_equal(second, other)
    assert not np.shares_memory(pixels.of_pil(image.resize((1024, 1024)), kept), kept), "it does not fit"
    arena.unshared(kept)
    os.close(fd)


@pytest.mark.parametrize(
    "image", [Placed(0, 9000, 10, "show"), Placed(0, 2, 8000, "show"), Placed(2**39, 10, 10, "show")]
)
def test_images_beyond_the_limits_are_refused(image: Placed) -> None:
    with pytest.raises(ProtocolError):
        arena.check([image], RunLimits())
    with pytest.raises(ProtocolError):
        arena.check([Placed(0, 1, 1, "show")] * 17, RunLimits())


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
    seen = arena.seen(arena.placed(fd, 4, 5), 4, 5)
    assert np.array_equal(seen, pixels) and not seen.flags.writeable
    del pixels
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
