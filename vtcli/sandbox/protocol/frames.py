"""Frames between host, template, guard and worker: one ``SOCK_SEQPACKET`` message each, a strict JSON header, raw
blobs after it, descriptors beside it. Nothing is unpickled, nothing is evaluated, every length is checked.

A frame is ``{"blobs": [3, 2], ...}\\nabcde``: the header's line, then the blobs end to end. That which asks for a run
has a plainer line (``order``); what a worker and a guard say about one stands in ``replies`` and ``answer``.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from vtcli.schema import Json

FRAME_BYTES = 320 * 1024  # the largest frame between trusted processes; fits a socket buffer of 416 kB
MAX_FDS = 250  # the kernel's limit is 253 a message
ORDER, TOLD, OPENING = b"run ", b"told ", b"open "
CREDENTIALS = struct.Struct("3i")
BUFFER_BYTES = 1 << 20
# Plain numbers, and one coder for all frames: to join flags or to make a coder costs each of a run's processes objects,
# and an object that is used is a page that is copied.
CUT = int(socket.MSG_CTRUNC | socket.MSG_TRUNC)
CLOSED = int(socket.MSG_CMSG_CLOEXEC)
RIGHTS = (int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS))
SENDER = (int(socket.SOL_SOCKET), int(socket.SCM_CREDENTIALS))


class ProtocolError(Exception):
    """A frame that is not what it must be: the message says what. Raised for nothing else."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One received message. ``pid``: of the process that sent it, as the kernel says; 0 when it was not asked; ``raw``:
    the whole of it, as it came."""

    header: Mapping[str, Json]
    blobs: tuple[bytes, ...]
    fds: tuple[int, ...] = ()
    pid: int = 0
    raw: bytes = b""

    def close(self) -> None:
        """Closes the descriptors that came with it."""
        for fd in self.fds:
            os.close(fd)


class _Buffer(threading.local):
    """Where frames are received: a new buffer for the largest, for each, would cost more than all else that a short run
    needs, and to ask for the size first costs a system call."""

    def __init__(self) -> None:
        self.room = bytearray(FRAME_BYTES + 1)


BUFFER = _Buffer()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a channel, closed on exec, with room for the largest frame."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return ends


def pack(header: Mapping[str, Json], blobs: Sequence[bytes] = ()) -> bytes:
    """The bytes of a frame. Raises ``ProtocolError`` when it is too long."""
    line = encoded({**header, "blobs": [len(b) for b in blobs]})
    return _fitting(b"".join((line.encode(), b"\n", *blobs)))


def order(seq: int, source: bytes) -> bytes:
    """The frame that asks for a run: a line without JSON, which costs both ends more than the rest of a short run.
    ``unpack`` makes of it what it would of any other: ``{"do": "run", "seq": seq}`` and one blob."""
    return _fitting(b"%b%d\n%b" % (ORDER, seq, source))


def told(seq: int) -> bytes:
    """The frame that tells a guard that the worker has its order already: ``{"do": "told", "seq": seq}``."""
    return b"%b%d\n" % (TOLD, seq)


def opening(number: int) -> bytes:
    """The frame that asks a template for the guard of an episode: ``{"do": "open", "seq": number}``."""
    return b"%b%d\n" % (OPENING, number)


def _fitting(data: bytes) -> bytes:
    if len(data) > FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(data)} bytes; at most {FRAME_BYTES} fit")
    return data


def unpack(data: bytes, header_bytes: int = FRAME_BYTES) -> tuple[dict[str, Json], tuple[bytes, ...]]:
    """Header and blobs of a frame. Raises ``ProtocolError``."""
    if data.startswith((ORDER, TOLD, OPENING)):
        line, _, source = data.partition(b"\n")
        kind, _, number = line.partition(b" ")
        if not number.isdigit() or len(number) > 16:
            raise ProtocolError("an order without a number")
        return {"do": kind.decode(), "seq": int(number)}, (source,)
    end = data.find(b"\n")
    if not 0 < end <= header_bytes:
        raise ProtocolError("a frame without a header line")
    header = parse_json(data[:end])
    lengths = header.pop("blobs", None)
    if not isinstance(lengths, list) or not all(type(n) is int and n >= 0 for n in lengths):
        raise ProtocolError("blobs are not lengths")
    if sum(lengths) != len(data) - end - 1:
        raise ProtocolError("blobs do not fill the frame")
    blobs: list[bytes] = []
    start = end + 1
    for length in lengths:
        blobs.append(data[start : start + length])
        start += length
    return header, tuple(blobs)


def send(sock: socket.socket, header: Mapping[str, Json], blobs: Sequence[bytes] = (), fds: Sequence[int] = ()) -> None:
    """Sends one frame. Raises ``OSError`` (``BlockingIOError`` when the other side does not read)."""
    data = pack(header, blobs)
    pass_on(sock, data, fds)


def pass_on(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """``send`` of a frame that is packed."""
    if fds:
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    else:
        sock.send(data)


def receive(
    sock: socket.socket, max_fds: int = 0, header_bytes: int = FRAME_BYTES, unpacked: bool = True
) -> Frame | None:
    """Receives one frame, None at the end of the channel; not ``unpacked``, it has nothing but ``raw``. Raises
    ``ProtocolError`` on anything malformed, with more than ``max_fds`` descriptors (all are closed), or cut;
    ``OSError`` from the socket."""
    room = socket.CMSG_SPACE(4 * max(max_fds, 1)) + socket.CMSG_SPACE(CREDENTIALS.size)
    length, ancillary, flags, _ = sock.recvmsg_into([BUFFER.room], room, CLOSED)
    data = bytes(memoryview(BUFFER.room)[:length])
    fds: list[int] = []
    pid = 0
    for level, kind, content in ancillary:
        if (level, kind) == RIGHTS:
            fds += array.array("i", content[: len(content) // 4 * 4])
        elif (level, kind) == SENDER:
            pid = CREDENTIALS.unpack(content[: CREDENTIALS.size])[0]
    try:
        if not data and not fds:
            return None
        if len(fds) > max_fds or flags & CUT:
            raise ProtocolError("a frame with descriptors that were not asked for, or cut")
        if not unpacked and len(data) > header_bytes:
            raise ProtocolError(f"a frame of {len(data)} bytes; at most {header_bytes} are taken")
        header, blobs = unpack(data, header_bytes) if unpacked else ({}, ())
    except ProtocolError:
        for fd in fds:
            os.close(fd)
        raise
    return Frame(header, blobs, tuple(fds), pid, data)


def _refuse(text: str) -> NoReturn:
    raise ProtocolError(f"{text} in JSON")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _refuse("a repeated key")


DECODER = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique)
ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def _encoder() -> Callable[[Json], str]:
    """``ENCODER.encode`` makes a new encoder in C for each text; where there is one it is made once, and used."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return ENCODER.encode
    coder = make(None, ENCODER.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    return lambda value: "".join(coder(value, 0))


encoded = _encoder()
"""A value as JSON without spaces. Raises ``ValueError`` for NaN and infinities, ``TypeError`` for what is no JSON."""


def parse_json(data: bytes) -> dict[str, Json]:
    """A JSON object without NaN, repeated keys or deep nesting, with any numbers. Raises ``ProtocolError``."""
    try:
        text = data.decode()
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError, MemoryError) as e:
        raise ProtocolError(f"not JSON: {type(e).__name__}") from None
    if not isinstance(value, dict) or end != len(text):
        raise ProtocolError("not a JSON object")
    return value
