"""What a guard tells the host about one run: one frame of a fixed head, and texts behind it.

Not JSON like the frames of ``wire``: between two runs a processor has forgotten the way through a JSON coder, and to
find it again costs more than everything else that is done with an answer.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass

from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.types import Status

MARK = b"A"  # no frame of ``wire`` begins so
HEAD = struct.Struct("=cQB??dddi3I")
"""Mark, number of the run, place of the status in ``STATUSES``, ``images``, ``stays``, wall and CPU seconds, MB,
signal, and the bytes of error, notes and reply; the output is the rest."""
STATUSES = tuple(Status)


@dataclass(frozen=True, slots=True)
class Answer:
    """One run. ``images``: those of the reply lie in the arena and may be taken; ``raw``: the worker's reply as it
    came, untested, empty when there was none; ``output``: what was printed, shortened; ``signal``: that killed the
    process, 0 for none; ``stays``: there is a process for the next run, without transactions the one that did this
    run."""

    seq: int
    status: Status
    images: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    signal: int = 0
    error: str = ""
    notes: tuple[str, ...] = ()
    raw: bytes = b""
    output: str = ""
    stays: bool = False

    def packed(self) -> bytes:
        """The frame."""
        error = self.error.encode("utf-8", "replace")
        notes = json.dumps({"notes": self.notes}).encode() if self.notes else b""
        sizes = len(error), len(notes), len(self.raw)
        times = self.wall_s, self.cpu_s, self.peak_mb
        flags = self.images, self.stays
        head = HEAD.pack(MARK, self.seq, STATUSES.index(self.status), *flags, *times, self.signal, *sizes)
        return b"".join((head, error, notes, self.raw, self.output.encode("utf-8", "replace")))

    @classmethod
    def unpacked(cls, data: bytes) -> Answer:
        """The answer in a frame. Raises ``ProtocolError`` when it is none."""
        try:
            mark, seq, status, images, stays, wall_s, cpu_s, peak_mb, signal, *sizes = HEAD.unpack_from(data)
            texts: list[bytes] = []
            start = HEAD.size
            for size in (*sizes, max(len(data) - HEAD.size - sum(sizes), 0)):
                texts.append(data[start : start + size])
                start += size
            error, notes, raw, output = texts
            answer = cls(
                *(seq, STATUSES[status], images, wall_s, cpu_s, peak_mb, signal, error.decode()),
                *(_notes(notes) if notes else (), raw, output.decode(), stays),
            )
        except (struct.error, IndexError, ValueError) as e:
            raise ProtocolError(f"an answer that is none: {e}") from None
        if mark != MARK or start != len(data) or not math.isfinite(wall_s + cpu_s + peak_mb):
            raise ProtocolError("an answer that is none")
        return answer


def _notes(data: bytes) -> tuple[str, ...]:
    notes = wire.parse_json(data).get("notes")
    if not isinstance(notes, list) or not all(isinstance(n, str) for n in notes):
        raise ProtocolError("notes that are no texts")
    return tuple(map(str, notes))
