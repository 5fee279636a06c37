"""A worker's reply about a run (``WorkerReply``), and its guard's answer to the host (``GuardAnswer``).

A reply's bytes are untrusted. ``parse`` tests all of them, and every way in which they can be wrong is a
``ProtocolError``. The guard acts on ``outline`` alone and hands the bytes on to the host.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args

from vtcli.sandbox.protocol import frames
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.types import Capture, Operation, Status
from vtcli.schema import Json

REPLY_BYTES = 64 * 1024  # the largest frame that a worker may send
MAX_DEPTH = 8
LARGEST = 2**53  # numbers are smaller: all whole ones are exact as floats
MAX_OPERATIONS = 256  # of one run, and of one image
MAX_IMAGES = 4096
KINDS = frozenset({"ok", "no_output", "error", "exit", "refused", "limit"})
ORIGINS: frozenset[str] = frozenset(get_args(Capture))
LIBRARIES = frozenset({"pil", "numpy", "cv2", "matplotlib", "video"})
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ArenaImage:
    """An image that lies in the arena: ``width * height * 3`` bytes of RGB from ``offset`` on."""

    offset: int
    width: int
    height: int
    origin: Capture
    name: str = ""
    operations: tuple[Operation, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of its pixels."""
        return self.width * self.height * 3


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A worker's claims about a run. ``kind``: ok | no_output | error | exit | refused | limit."""

    seq: int
    kind: str
    error: str = ""
    value: str = ""
    images: tuple[ArenaImage, ...] = ()
    images_dropped: int = 0
    operations: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """The part of a reply that the guard acts on: whose it is, how the run ended, whether there are images."""

    seq: int
    kind: str
    images: bool


def encode(reply: WorkerReply) -> bytes:
    """The frame in which a worker sends ``reply``. What does not fit is left out from the end: notes, operations,
    value, then the error's beginning. Raises ``ProtocolError`` when even the images alone do not fit."""
    for operations, chars in ((MAX_OPERATIONS, REPLY_BYTES), (64, 4096), (8, 1024), (0, 200)):
        header: dict[str, Json] = {
            "seq": reply.seq,
            "kind": reply.kind,
            "images": [_image(i, operations) for i in reply.images],
            "error": _clean(reply.error)[-chars:],
            "value": _clean(reply.value)[:chars],
            "images_dropped": reply.images_dropped,
            "operations": [_operation(o) for o in reply.operations[:operations]],
            "notes": [_clean(n)[:300] for n in reply.notes[: max(operations, 1)]],
        }
        with contextlib.suppress(ProtocolError):  # longer than any frame
            data = frames.pack(header)
            if len(data) <= REPLY_BYTES:
                return data
    raise ProtocolError("a reply that does not fit")


def parse(data: bytes) -> WorkerReply:
    """A worker's reply, each field checked for type, length and range. Raises ``ProtocolError``."""
    if len(data) > REPLY_BYTES:
        raise ProtocolError("a reply too long")
    fields, blobs = frames.unpack(data)
    if blobs:
        raise ProtocolError("a reply with blobs")
    reply = WorkerReply(
        seq=_integer(fields.pop("seq", None), 0, 2**53),
        kind=_kind(fields.pop("kind", None)),
        error=_text(fields.pop("error", None), REPLY_BYTES),
        value=_text(fields.pop("value", None), REPLY_BYTES),
        images=tuple(_placed(i) for i in _list(fields.pop("images", None), MAX_IMAGES)),
        images_dropped=_integer(fields.pop("images_dropped", None), 0, 2**31),
        operations=_operations(fields.pop("operations", None)),
        notes=tuple(_text(n, 4096) for n in _list(fields.pop("notes", None), MAX_OPERATIONS)),
    )
    # Strict, so that nothing travels to the host that no check has seen.
    if fields:
        raise ProtocolError("a reply with unknown fields")
    return reply


def outline(header: Mapping[str, Json]) -> Outline:
    """The outline of a reply whose frame was unpacked. Raises ``ProtocolError``."""
    images = _list(header.get("images"), MAX_IMAGES)
    return Outline(_integer(header.get("seq"), 0, 2**53), _kind(header.get("kind")), bool(images))


@dataclass(frozen=True, slots=True)
class GuardAnswer:
    """One run, as the guard saw it. ``images``: those of the reply lie in the arena and may be taken. ``reply``: the
    worker's frame, untested; empty without one. ``output``: what was printed, shortened. ``signal``: the signal that
    killed the process; 0: none."""

    seq: int
    status: Status
    images: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    signal: int = 0
    error: str = ""
    notes: tuple[str, ...] = ()
    reply: bytes = b""
    output: str = ""

    def packed(self) -> bytes:
        """The frame that tells the host."""
        header: dict[str, Json] = {
            "seq": self.seq,
            "status": self.status.value,
            "images": self.images,
            "times": [self.wall_s, self.cpu_s, self.peak_mb],
            "signal": self.signal,
            "error": _clean(self.error),
            "notes": list(self.notes),
        }
        return frames.pack(header, [self.reply, self.output.encode("utf-8", "replace")])


def parse_answer(frame: frames.Frame) -> GuardAnswer:
    """Reads the answer in a guard's frame. Raises ``ProtocolError`` for any other frame."""
    fields = frame.header
    try:
        wall_s, cpu_s, peak_mb = (float(n) for n in fields["times"])
        reply, output = frame.blobs
        answer = GuardAnswer(
            seq=_integer(fields["seq"], 0, 2**53),
            status=Status(fields["status"]),
            images=fields["images"] is True,
            wall_s=wall_s,
            cpu_s=cpu_s,
            peak_mb=peak_mb,
            signal=_integer(fields["signal"], 0, 256),
            error=_text(fields["error"], frames.FRAME_BYTES),
            notes=tuple(_text(n, 4096) for n in _list(fields["notes"], 64)),
            reply=reply,
            output=output.decode(),
        )
    except (KeyError, ValueError, TypeError) as e:
        raise ProtocolError(f"not an answer: {type(e).__name__}: {e}") from None
    if not math.isfinite(wall_s + cpu_s + peak_mb):
        raise ProtocolError("not an answer: a time that is not finite")
    return answer


def _clean(text: str) -> str:
    return SURROGATE.sub("\ufffd", text)


def _image(placed: ArenaImage, operations: int) -> list[Json]:
    chain: list[Json] = [_operation(o) for o in placed.operations[:operations]]
    return [placed.offset, placed.width, placed.height, placed.origin, _clean(placed.name)[:255], chain]


def _operation(operation: Operation) -> list[Json]:
    arguments = {_clean(str(k))[:64]: _plain(v) for k, v in islice(operation.arguments.items(), 16)}
    box = None if operation.box is None else _plain(operation.box)
    image = None if operation.image is None else int(operation.image)
    return [_clean(operation.name)[:32], arguments, operation.library, image, box]


def _plain(value: Any, depth: int = 0) -> Json:
    """``value`` as plain JSON: other types, and lists too deep, become text; long ones are cut."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _clean(value)[:256]
    if isinstance(value, int | float):
        return value if abs(value) < LARGEST else str(value)[:64]
    if isinstance(value, list | tuple) and depth < 4:
        return [_plain(v, depth + 1) for v in value[:256]]
    return f"<{type(value).__name__}>"[:64]


def _list(value: Json, longest: int) -> list[Json]:
    if not isinstance(value, list) or len(value) > longest:
        raise ProtocolError("not a list, or too long a list")
    return value


def _entries(value: Json, count: int) -> list[Json]:
    if not isinstance(value, list) or len(value) != count:
        raise ProtocolError("not a list, or one of another length")
    return value


def _text(value: Json, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest or SURROGATE.search(value):
        raise ProtocolError("not a text, or too long a text")
    return value


def _integer(value: Json, low: int, high: int) -> int:
    # ``type``, not ``isinstance``: JSON's true would pass for 1.
    if type(value) is not int or not low <= value < high:
        raise ProtocolError("not an integer, or out of range")
    return value


def _kind(value: Json) -> str:
    kind = _text(value, 16)
    if kind not in KINDS:
        raise ProtocolError("an unknown kind of end")
    return kind


def _placed(value: Json) -> ArenaImage:
    offset, width, height, origin, name, operations = _entries(value, 6)
    if not isinstance(origin, str) or origin not in ORIGINS:
        raise ProtocolError("an image of unknown origin")
    return ArenaImage(
        _integer(offset, 0, 2**40),
        _integer(width, 1, 2**20),
        _integer(height, 1, 2**20),
        origin,  # pyright: ignore[reportArgumentType]  # one of ORIGINS, which are Capture's
        _text(name, 255),
        _operations(operations),
    )


def _operations(value: Json) -> tuple[Operation, ...]:
    return tuple(_one_operation(o) for o in _list(value, MAX_OPERATIONS))


def _one_operation(value: Json) -> Operation:
    name, arguments, library, image, box = _entries(value, 5)
    if type(arguments) is not dict or len(arguments) > 16:
        raise ProtocolError("an operation without arguments, or with too many")
    if type(library) is not str or library not in LIBRARIES:
        raise ProtocolError("an operation of an unknown library")
    for key, argument in arguments.items():
        _text(key, 64)
        _argument(argument)
    if image is not None:
        _integer(image, 0, 2**20)
    return Operation(_text(name, 32), arguments, library, image, None if box is None else _box(box))


def _box(value: Json) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = (_number(v) for v in _entries(value, 4))
    return x1, y1, x2, y2


def _number(value: Json) -> float:
    """Infinities are out of range, too."""
    if not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        raise ProtocolError("not a number, or out of range")
    return float(value)


def _argument(value: Json, depth: int = 0) -> None:
    if isinstance(value, int | float):  # bool, too
        _number(value)
    elif isinstance(value, str):
        _text(value, 256)
    elif value is not None:
        if depth >= MAX_DEPTH:
            raise ProtocolError("nested too deep")
        for entry in _list(value, 256):
            _argument(entry, depth + 1)
