"""The file of replies: what an endpoint said to a request, by URL and the request's content, to pay nothing twice.

Runs share a file for each model. A reply is written as soon as it is there, so that a kill costs the open requests
alone. Only whole replies are kept: an error is asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.foreign import print_line
from vtcli.store import disk, records

LOCK_S = 60.0


@dataclass(frozen=True, slots=True)
class StoredReply:
    """One reply. ``input`` and ``output`` are tokens; ``estimated``: the server did not count them."""

    key: str
    text: str
    finish: str
    input: int
    output: int
    estimated: bool = False


def key_of(value: Any) -> str:
    """The sha256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class StoredReplies:
    """The file ``path``; a process sees what it held when it was opened, and its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = {reply.key: reply for reply in records.read(path, StoredReply)} if path.exists() else {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> StoredReply | None:
        return self._known.get(key)

    def put(self, reply: StoredReply) -> None:
        """Durably. Raises ``InputError`` for disk trouble."""
        with disk.locked(self.path.with_suffix(".lock"), LOCK_S, f"the replies in {self.path}"):
            records.append(self.path, [reply])
        self._known[reply.key] = reply


class NoReplies(StoredReplies):
    """Keeps nothing."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull, "none"))

    def put(self, reply: StoredReply) -> None:
        """Dropped."""


def open_replies(cache: str | None, home: Path, model: str) -> StoredReplies:
    """The replies in ``cache`` (None: a model's own file in the run's home). A line on standard error says that there
    are some, because a server may have other weights under the same name by now."""
    own = home / ".replies" / f"{hashlib.sha256(model.encode()).hexdigest()[:12]}.jsonl"
    found = StoredReplies(Path(cache) if cache else own)
    if len(found):
        print_line(
            f"{model}: {len(found)} replies in {found.path} answer requests that were made before. If the server has "
            "other weights now, give them a name of their own, or another cache."
        )
    return found
