"""Frames between host, template, guard and worker, in one encoding. A frame is a ``SOCK_SEQPACKET`` message with a
strict JSON header, raw blobs after it and descriptors beside it. The reader never unpickles or evaluates, and checks
every length.

A frame is ``{"seq": 1, "blobs": [3, 2]}\\nabcde``: the header's line, then the blobs end to end.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from vtcli.schema import Json

FRAME_BYTES = 320 * 1024  # the largest frame between trusted processes; fits a socket buffer of 416 kB
MAX_FDS = 250  # the kernel's limit is 253 a message
BUFFER_BYTES = 1 << 20
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of the sender, filled in by the kernel


class ProtocolError(Exception):
    """A frame that is malformed. The message has the reason. Raised for nothing else."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One received message. ``pid``: of the sender, by the kernel (0 where the channel does not ask for it).
    ``raw``: the whole message."""

    header: Mapping[str, Json]
    blobs: tuple[bytes, ...]
    fds: tuple[int, ...] = ()
    pid: int = 0
    raw: bytes = b""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a channel, closed on exec, with room for the largest frame."""
    # SEQPACKET keeps the borders of messages, so that no length has to be believed.
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return ends


def pack(header: Mapping[str, Json], blobs: Sequence[bytes] = ()) -> bytes:
    """The bytes of a frame. Raises ``ProtocolError`` when it is too long."""
    line = ENCODER.encode({**header, "blobs": [len(b) for b in blobs]})
    data = b"".join((line.encode(), b"\n", *blobs))
    if len(data) > FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(data)} bytes; at most {FRAME_BYTES} fit")
    return data


def unpack(data: bytes) -> tuple[dict[str, Json], tuple[bytes, ...]]:
    """Header and blobs of a frame. Raises ``ProtocolError``."""
    line, newline, rest = data.partition(b"\n")
    if not newline:
        raise ProtocolError("a frame without a header line")
    header = parse_json(line)
    lengths = header.pop("blobs", None)
    if not isinstance(lengths, list) or not all(type(n) is int and n >= 0 for n in lengths):
        raise ProtocolError("blobs are not lengths")
    if sum(lengths) != len(rest):
        raise ProtocolError("blobs do not fill the frame")
    blobs: list[bytes] = []
    start = 0
    for length in lengths:
        blobs.append(rest[start : start + length])
        start += length
    return header, tuple(blobs)


def send(sock: socket.socket, header: Mapping[str, Json], blobs: Sequence[bytes] = (), fds: Sequence[int] = ()) -> None:
    """Sends one frame. Raises ``OSError``."""
    send_packed(sock, pack(header, blobs), fds)


def send_packed(sock: socket.socket, data: bytes, fds: Sequence[int] = (), wait: bool = True) -> None:
    """Sends a frame that ``pack`` made. Without ``wait`` a full channel raises ``BlockingIOError`` at once. Raises
    ``OSError``."""
    flags = 0 if wait else socket.MSG_DONTWAIT
    if fds:
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))], flags)
    else:
        sock.send(data, flags)


def receive(sock: socket.socket, max_fds: int = 0, longest: int = FRAME_BYTES) -> Frame | None:
    """Receives one frame; None at the end of the channel. Raises ``OSError`` from the socket, and ``ProtocolError``
    for a frame that is malformed, cut or longer than ``longest``. A frame with more than ``max_fds`` descriptors
    also raises it, and all are closed then."""
    room = socket.CMSG_SPACE(4 * max(max_fds, 1)) + socket.CMSG_SPACE(CREDENTIALS.size)
    # One byte more than allowed shows that a frame is too long.
    data, ancillary, flags, _ = sock.recvmsg(longest + 1, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    pid = 0
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += array.array("i", content[: len(content) // 4 * 4])
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid = CREDENTIALS.unpack(content[: CREDENTIALS.size])[0]
    try:
        # An empty message is the end of a channel: every frame has a header.
        if not data and not fds:
            return None
        if len(fds) > max_fds or flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC) or len(data) > longest:
            raise ProtocolError("a frame that is cut, too long, or has descriptors that were not asked for")
        header, blobs = unpack(data)
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


# A repeated key would mean one thing to a check and another to its reader.
DECODER = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique)
ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def parse_json(data: bytes) -> dict[str, Json]:
    """A JSON object without NaN, repeated keys or deep nesting. Raises ``ProtocolError``."""
    try:
        text = data.decode()
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError, MemoryError) as e:
        raise ProtocolError(f"not JSON: {type(e).__name__}") from None
    if not isinstance(value, dict) or end != len(text):
        raise ProtocolError("not a JSON object")
    return value
