"""Frames between host, template, guard and worker: one ``SOCK_SEQPACKET`` message each, a strict JSON header, raw
blobs after it, descriptors beside it. Nothing is unpickled, nothing is evaluated, every length is checked.

A frame is ``{"blobs": [3, 2], ...}\\nabcde``: the header's line, then the blobs end to end. ``parse_reply`` reads what
the worker says about a run; its bytes are untrusted, and every way in which they can be wrong is a ``ProtocolError``.
"""

from __future__ import annotations

import array
import json
import math
import os
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from vtcli.sandbox.types import Capture, Operation
from vtcli.schema import Json

FRAME_BYTES = 320 * 1024  # the largest frame between trusted processes; fits a socket buffer of 416 kB
REPLY_BYTES = 64 * 1024  # the largest header that a worker may send
MAX_FDS = 250  # the kernel's limit is 253 a message
MAX_DEPTH = 8
MAX_OPERATIONS = 256  # of one run, and of one image
MAX_IMAGES = 4096
KINDS = frozenset({"ok", "no_output", "error", "exit", "refused", "limit"})
ORIGINS: frozenset[str] = frozenset(get_args(Capture))
ORDER = b"run "
HEARD = re.compile(rb'\{"seq": ?(\d{1,16}), ?"kind": ?"([a-z_]{2,9})", ?"images": ?\[(\]?)')
LIBRARIES = frozenset({"pil", "numpy", "cv2", "matplotlib", "video"})
CREDENTIALS = struct.Struct("3i")
BUFFER_BYTES = 1 << 20
SURROGATE = re.compile("[\ud800-\udfff]")
# Plain numbers, and one coder for all frames: to join flags or to make a coder costs each of a run's processes objects,
# and an object that is used is a page that is copied.
LOOK = int(socket.MSG_PEEK | socket.MSG_TRUNC)
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


@dataclass(frozen=True, slots=True)
class Placed:
    """An image that lies in the arena: ``width * height * 3`` bytes of RGB from ``offset`` on."""

    offset: int
    width: int
    height: int
    origin: Capture
    name: str = ""
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker claims about a run. ``kind``: ok | no_output | error | exit | refused | limit."""

    seq: int
    kind: str
    error: str = ""
    value: str = ""
    images: tuple[Placed, ...] = ()
    images_dropped: int = 0
    operations: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """What the guard acts on: whose reply it is, how the run ended, whether there are images."""

    seq: int
    kind: str
    images: bool


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a channel, closed on exec, with room for the largest frame."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return ends


def pack(header: Mapping[str, Json], blobs: Sequence[bytes] = ()) -> bytes:
    """The bytes of a frame. Raises ``ProtocolError`` when it is too long."""
    line = ENCODER.encode({**header, "blobs": [len(b) for b in blobs]})
    return _fitting(b"".join((line.encode(), b"\n", *blobs)))


def order(seq: int, source: bytes) -> bytes:
    """The frame that asks for a run: a line without JSON, which costs both ends more than the rest of a short run.
    ``unpack`` makes of it what it would of any other: ``{"do": "run", "seq": seq}`` and one blob."""
    return _fitting(b"%b%d\n%b" % (ORDER, seq, source))


def _fitting(data: bytes) -> bytes:
    if len(data) > FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(data)} bytes; at most {FRAME_BYTES} fit")
    return data


def unpack(data: bytes, header_bytes: int = FRAME_BYTES) -> tuple[dict[str, Json], tuple[bytes, ...]]:
    """Header and blobs of a frame. Raises ``ProtocolError``."""
    if data.startswith(ORDER):
        number, _, source = data[len(ORDER) :].partition(b"\n")
        if not number.isdigit() or len(number) > 16:
            raise ProtocolError("an order without a number")
        return {"do": "run", "seq": int(number)}, (source,)
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
    # Its size first: a buffer for the largest would cost more than all else that a short run needs, 90 us where memory
    # is had in huge pages.
    waiting = sock.recvmsg_into([], 0, LOOK)[0]
    data, ancillary, flags, _ = sock.recvmsg(min(waiting, FRAME_BYTES) + 1, room, CLOSED)
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


def _whole(text: str) -> int:
    return int(text) if len(text) <= 20 else _refuse("a huge integer")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse("an infinite number")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _refuse("a repeated key")


DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=_whole, parse_float=_finite, object_pairs_hook=_unique)
ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def parse_json(data: bytes) -> dict[str, Json]:
    """A JSON object without NaN, infinities, repeated keys, huge integers or deep nesting. Raises ``ProtocolError``."""
    try:
        value = DECODER.decode(data.decode())
    except (ValueError, RecursionError, MemoryError) as e:
        raise ProtocolError(f"not JSON: {type(e).__name__}") from None
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value


def encode_reply(reply: Reply) -> bytes:
    """The frame in which a worker sends ``reply``. What does not fit is left out from the end: notes, operations,
    value, then the error's beginning. In an image's chain the run's own operations are told by their number."""
    text = _clean
    for operations, chars in ((MAX_OPERATIONS, REPLY_BYTES), (64, 4096), (8, 1024), (0, 200)):
        numbers = {id(o): n for n, o in enumerate(reply.operations[:operations])}
        header: dict[str, Json] = {
            "seq": reply.seq,
            "kind": reply.kind,
            "images": [_image(i, operations, numbers) for i in reply.images],
            "error": text(reply.error)[-chars:],
            "value": text(reply.value)[:chars],
            "images_dropped": reply.images_dropped,
            "operations": [_operation(o) for o in reply.operations[:operations]],
            "notes": [text(n)[:300] for n in reply.notes[: max(operations, 1)]],
        }
        data = pack(header)
        if len(data) <= REPLY_BYTES:
            return data
    raise ProtocolError("a reply that does not fit")


def parse_reply(data: bytes) -> Reply:
    """What a worker sent about a run, each field checked for type, length and range. Raises ``ProtocolError``."""
    if len(data) > REPLY_BYTES:
        raise ProtocolError("a reply too long")
    fields, blobs = unpack(data, REPLY_BYTES)
    if blobs:
        raise ProtocolError("a reply with blobs")
    operations = _operations(fields.pop("operations", None))
    reply = Reply(
        seq=_integer(fields.pop("seq", None), 0, 2**53),
        kind=_kind(fields.pop("kind", None)),
        error=_text(fields.pop("error", None), REPLY_BYTES),
        value=_text(fields.pop("value", None), REPLY_BYTES),
        images=tuple(_placed(i, operations) for i in _list(fields.pop("images", None), MAX_IMAGES)),
        images_dropped=_integer(fields.pop("images_dropped", None), 0, 2**31),
        operations=operations,
        notes=tuple(_text(n, 4096) for n in _list(fields.pop("notes", None), MAX_OPERATIONS)),
    )
    if fields:
        raise ProtocolError("a reply with unknown fields")
    return reply


def heard(data: bytes) -> Heard:
    """The beginning of a reply, with which each must begin. All else is for the host, which gets the frame as it came
    and tests the whole, in which no key may stand twice. Raises ``ProtocolError``."""
    found = HEARD.match(data)
    if found is None:
        raise ProtocolError("a reply that does not begin as it must")
    return Heard(int(found[1]), _kind(found[2].decode()), not found[3])


def _clean(text: str) -> str:
    return SURROGATE.sub("\ufffd", text)


def _image(placed: Placed, operations: int, numbers: Mapping[int, int]) -> list[Json]:
    chain: list[Json] = []
    for operation in placed.operations[:operations]:
        number = numbers.get(id(operation))
        chain.append(_operation(operation) if number is None else number)
    return [placed.offset, placed.width, placed.height, placed.origin, _clean(placed.name)[:255], chain]


def _operation(operation: Operation) -> list[Json]:
    arguments = {_clean(str(k))[:64]: _plain(v) for k, v in list(operation.arguments.items())[:16]}
    box = None if operation.box is None else [_plain(v) for v in operation.box]
    image = None if operation.image is None else int(operation.image)
    return [_clean(operation.name)[:32], arguments, operation.library, image, box]


def _plain(value: Any, depth: int = 0) -> Json:
    """``value`` as plain JSON: other types and what is too deep or too long become text or are cut."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _clean(value)[:256]
    if isinstance(value, int | float):
        return value if abs(value) < 2**53 else str(value)[:64]
    if isinstance(value, list | tuple) and depth < 4:
        return [_plain(v, depth + 1) for v in value[:256]]
    return f"<{type(value).__name__}>"[:64]


def _list(value: Json, longest: int) -> list[Json]:
    if not isinstance(value, list) or len(value) > longest:
        raise ProtocolError("not a list, or too long a list")
    return value


def _text(value: Json, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest or SURROGATE.search(value):
        raise ProtocolError("not a text, or too long a text")
    return value


def _integer(value: Json, low: int, high: int) -> int:
    if type(value) is not int or not low <= value < high:
        raise ProtocolError("not an integer, or out of range")
    return value


def _kind(value: Json) -> str:
    kind = _text(value, 16)
    if kind not in KINDS:
        raise ProtocolError("an unknown kind of end")
    return kind


def _placed(value: Json, told: Sequence[Operation]) -> Placed:
    """``told``: the run's own operations."""
    match _list(value, 6):
        case [offset, width, height, str(origin), name, operations] if origin in ORIGINS:
            return Placed(
                _integer(offset, 0, 2**40),
                _integer(width, 1, 2**20),
                _integer(height, 1, 2**20),
                origin,  # pyright: ignore[reportArgumentType]  # one of ORIGINS, which are Capture's
                _text(name, 255),
                _operations(operations, told),
            )
        case _:
            raise ProtocolError("not an image")


def _operations(value: Json, told: Sequence[Operation] = ()) -> tuple[Operation, ...]:
    """A chain, in which those that were ``told`` may stand by their number."""
    return tuple(
        told[_integer(o, 0, len(told))] if type(o) is int else _one_operation(o) for o in _list(value, MAX_OPERATIONS)
    )


def _one_operation(value: Json) -> Operation:
    match _list(value, 5):
        case [name, dict(arguments), str(library), image, box] if library in LIBRARIES and len(arguments) <= 16:
            return Operation(
                name=_text(name, 32),
                arguments={_text(k, 64): _argument(v) for k, v in arguments.items()},
                library=library,
                image=None if image is None else _integer(image, 0, 2**20),
                box=None if box is None else _box(box),
            )
        case _:
            raise ProtocolError("not an operation")


def _box(value: Json) -> tuple[float, float, float, float]:
    match _list(value, 4):
        case [int() | float() as x1, int() | float() as y1, int() | float() as x2, int() | float() as y2]:
            return float(x1), float(y1), float(x2), float(y2)
        case _:
            raise ProtocolError("not a box")


def _argument(value: Json, depth: int = 0) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if abs(value) >= 2**53:
            raise ProtocolError("a number out of range")
        return value
    if isinstance(value, str):
        return _text(value, 256)
    if depth >= MAX_DEPTH:
        raise ProtocolError("nested too deep")
    return [_argument(v, depth + 1) for v in _list(value, 256)]
