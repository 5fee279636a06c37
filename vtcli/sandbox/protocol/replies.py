"""What a worker says about a run: one frame of ``wire``, written by ``encode``. Its bytes are untrusted: ``parse``
tests all of them, and every way in which they can be wrong is a ``ProtocolError``; a guard acts on its beginning,
``heard``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args

from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.types import Capture, Operation
from vtcli.schema import Json

REPLY_BYTES = 64 * 1024  # the largest frame that a worker may send
MAX_DEPTH = 8
LARGEST = 2**53  # numbers are smaller than it: all whole ones are exact as floats
MAX_OPERATIONS = 256  # of one run, and of one image
MAX_IMAGES = 4096
KINDS = frozenset({"ok", "no_output", "error", "exit", "refused", "limit"})
ORIGINS: frozenset[str] = frozenset(get_args(Capture))
LIBRARIES = frozenset({"pil", "numpy", "cv2", "matplotlib", "video"})
EXACT = frozenset({int, float})  # types
NUMBERS = EXACT | {bool}
SURROGATE = re.compile("[\ud800-\udfff]")
HEARD = re.compile(rb'\{"seq": ?(\d{1,16}), ?"kind": ?"([a-z_]{2,9})", ?"images": ?\[(\]?)')


@dataclass(frozen=True, slots=True)
class Placed:
    """An image that lies in the arena: ``width * height * 3`` bytes of RGB from ``offset`` on."""

    offset: int
    width: int
    height: int
    origin: Capture
    name: str = ""
    operations: tuple[Operation, ...] = ()

    @property
    def bytes(self) -> int:
        """Of its pixels."""
        return self.width * self.height * 3


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


def encode(reply: Reply) -> bytes:
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
        data = wire.pack(header)
        if len(data) <= REPLY_BYTES:
            return data
    raise ProtocolError("a reply that does not fit")


def parse(data: bytes) -> Reply:
    """What a worker sent about a run, each field checked for type, length and range. Raises ``ProtocolError``."""
    if len(data) > REPLY_BYTES:
        raise ProtocolError("a reply too long")
    fields, blobs = wire.unpack(data, REPLY_BYTES)
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
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def _image(placed: Placed, operations: int, numbers: Mapping[int, int]) -> list[Json]:
    chain: list[Json] = []
    for operation in placed.operations[:operations]:
        number = numbers.get(id(operation))
        chain.append(_operation(operation) if number is None else number)
    return [placed.offset, placed.width, placed.height, placed.origin, _clean(placed.name)[:255], chain]


def _operation(operation: Operation) -> list[Json]:
    arguments = {_clean(str(k))[:64]: _plain(v) for k, v in islice(operation.arguments.items(), 16)}
    box = None if operation.box is None else _plain(operation.box)
    image = None if operation.image is None else int(operation.image)
    return [_clean(operation.name)[:32], arguments, operation.library, image, box]


def _plain(value: Any, depth: int = 0) -> Json:
    """``value`` as plain JSON: other types and what is too deep or too long become text or are cut."""
    if type(value) is int and -LARGEST < value < LARGEST:
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _clean(value)[:256]
    if isinstance(value, int | float):
        return value if abs(value) < LARGEST else str(value)[:64]
    if isinstance(value, list | tuple) and depth < 4:
        return [v if type(v) in EXACT and -LARGEST < v < LARGEST else _plain(v, depth + 1) for v in value[:256]]
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
    if not isinstance(value, str) or len(value) > longest or (not value.isascii() and SURROGATE.search(value)):
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
    offset, width, height, origin, name, operations = _entries(value, 6)
    if not isinstance(origin, str) or origin not in ORIGINS:
        raise ProtocolError("an image of unknown origin")
    return Placed(
        _integer(offset, 0, 2**40),
        _integer(width, 1, 2**20),
        _integer(height, 1, 2**20),
        origin,  # pyright: ignore[reportArgumentType]  # one of ORIGINS, which are Capture's
        _text(name, 255),
        _operations(operations, told),
    )


def _operations(value: Json, told: Sequence[Operation] = ()) -> tuple[Operation, ...]:
    """A chain, in which those that were ``told`` may stand by their number."""
    return tuple(
        told[_integer(o, 0, len(told))] if type(o) is int else _one_operation(o) for o in _list(value, MAX_OPERATIONS)
    )


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
    """Infinities are out of range, too."""
    for number in _entries(value, 4):
        if type(number) not in NUMBERS or not -LARGEST < number < LARGEST:
            raise ProtocolError("not a number, or out of range")
    x1, y1, x2, y2 = value
    return float(x1), float(y1), float(x2), float(y2)


def _argument(value: Json, depth: int = 0) -> None:
    kind = type(value)
    if kind in NUMBERS:
        if not -LARGEST < value < LARGEST:
            raise ProtocolError("a number out of range")
    elif kind is str:
        _text(value, 256)
    elif value is not None:
        if depth >= MAX_DEPTH:
            raise ProtocolError("nested too deep")
        for entry in _list(value, 256):
            _argument(entry, depth + 1)
