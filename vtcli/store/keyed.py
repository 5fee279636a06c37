"""A JSONL file of answers by key, which many processes may share: what was asked and paid for once is not asked again.

A line is written in one piece and begins on a new line. So a torn line (power, disk, kill) costs itself alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from vtcli.foreign import load_json
from vtcli.store import disk

T = TypeVar("T")

LOCK_S = 60.0


def key_of(value: Any) -> str:
    """The sha256 of any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class KeyedFile(Generic[T]):
    """The file ``path``, with ``read(line)`` of its lines in memory by key; None: the line is of another kind."""

    def __init__(self, path: Path, what: str, read: Callable[[Mapping[str, Any]], T | None]) -> None:
        self.path, self._what, self._read = path, what, read
        self._known: dict[str, T] = {}
        self._seen = 0  # bytes, up to a line's end
        with disk.checked(path, f"open {what}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        self._catch_up()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> T | None:
        """Returns the answer to a key, or None. Reads the lines that other processes have added before it gives up."""
        if key not in self._known:
            self._catch_up()
        return self._known.get(key)

    def put(self, key: str, line: Mapping[str, Any], *, durable: bool = False) -> None:
        """Keeps an answer. ``durable``: also when the power fails, and beside writers on other machines. Raises
        ``InputError`` for disk trouble, and for a lock that another process holds too long."""
        found = {"key": key, **line}
        # A newline in front as well: after a torn line this one still begins on its own.
        data = f"\n{json.dumps(found, ensure_ascii=False)}\n".encode("utf-8", "replace")
        with ExitStack() as held:
            if durable:  # clients of NFS append at the end that each of them knows
                held.enter_context(disk.locked(self.path.with_suffix(".lock"), LOCK_S, self._what))
            held.enter_context(disk.checked(self.path))
            file = held.enter_context(self.path.open("ab", buffering=0))
            written = file.write(data)  # one write to an O_APPEND file: no other process's bytes get between
            if written < len(data):
                file.write(data[written:])
            if durable:
                os.fsync(file.fileno())
        answer = self._read(found)
        assert answer is not None, "what is put can be read"
        self._known[key] = answer

    def _catch_up(self) -> None:
        with disk.checked(self.path, f"read {self._what}"):
            try:
                with self.path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if size < self._seen:  # removed and begun again
                        self._seen = 0
                    if size == self._seen:
                        return
                    file.seek(self._seen)
                    data = file.read()
            except FileNotFoundError:  # removed during the run; ``put`` creates it again
                self._seen = 0
                return
        # Another process may be in the middle of a line: its rest is read next time.
        whole = data.rfind(b"\n") + 1
        self._seen += whole
        for line in data[:whole].splitlines():
            try:
                value: Any = load_json(line)
            except ValueError:  # torn
                continue
            if isinstance(value, dict) and "schema_version" in value:  # 0.1.0 wrote replies as records
                value = cast("dict[str, Any]", value).get("value")
            if isinstance(value, dict) and isinstance(key := cast("dict[str, Any]", value).get("key"), str):
                answer = self._read(cast("dict[str, Any]", value))
                if answer is not None:
                    self._known[key] = answer
