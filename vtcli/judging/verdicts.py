"""The store of verdicts: one line each, appended to a file that many processes may share.

A line is written in one piece and begins on a new line. So a torn line (power, disk, kill) costs itself alone. Missing
verdicts are not kept: those questions are asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from vtcli.foreign import load_json
from vtcli.store import disk


def key_of(value: Any) -> str:
    """The sha256 of any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Verdicts:
    """The file ``path`` with its scores in memory, by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scores: dict[str, float] = {}
        self._read = 0  # bytes, up to a line's end
        with disk.checked(path, "open the judge's verdicts"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._catch_up()

    def __len__(self) -> int:
        return len(self._scores)

    def get(self, key: str) -> float | None:
        """The score of a key, including one that another process has written since."""
        if key not in self._scores:
            self._catch_up()
        return self._scores.get(key)

    def put(self, key: str, score: float, facts: Mapping[str, Any]) -> None:
        """Keep a score with the record of its origin. Raises ``InputError`` for a full disk."""
        line = json.dumps({"key": key, "score": score} | dict(facts), ensure_ascii=False)
        data = f"\n{line}\n".encode("utf-8", "replace")
        with disk.checked(self.path):
            written = os.write(self._file, data)  # one write to an O_APPEND file: no other process's bytes get between
            if written < len(data):
                os.write(self._file, data[written:])
        self._scores[key] = score

    def close(self) -> None:
        os.close(self._file)

    def _catch_up(self) -> None:
        with disk.checked(self.path, "read the judge's verdicts"):
            size = os.fstat(self._file).st_size
            if size <= self._read:
                return
            data = os.pread(self._file, size - self._read, self._read)
        whole = data.rfind(b"\n") + 1
        self._read += whole
        for line in data[:whole].splitlines():
            found = _entry(line)
            if found is not None:
                self._scores[found[0]] = found[1]


def _entry(line: bytes) -> tuple[str, float] | None:
    """The key and score of a line; None for a blank or torn one."""
    try:
        value: Any = load_json(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    entry = cast("dict[str, Any]", value)
    key, score = entry.get("key"), entry.get("score")
    return (key, float(score)) if isinstance(key, str) and isinstance(score, int | float) else None
