"""Stores an endpoint's replies by URL and content of the request, so that no request is paid twice.

Runs share one file for each model. A reply is written as soon as it arrives, so that a kill costs only the requests in
flight. Only whole replies are kept: a request that failed is sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.foreign import print_line
from vtcli.store import codec
from vtcli.store.keyed import KeyedFile


@dataclass(frozen=True, slots=True)
class StoredReply:
    """One reply. ``input`` and ``output`` are tokens; ``estimated``: the server did not count them."""

    key: str
    text: str
    finish: str
    input: int
    output: int
    estimated: bool = False


def _reply(line: Mapping[str, Any]) -> StoredReply | None:
    try:
        return codec.decode(StoredReply, line)
    except ValueError:
        return None


def open_replies(cache: str | None, home: Path, model: str) -> KeyedFile[StoredReply]:
    """Opens the replies in ``cache`` (None: the model's file in the run's home). Prints their number on standard error,
    because by now the server may serve other weights under the same name."""
    own = home / ".replies" / f"{hashlib.sha256(model.encode()).hexdigest()[:12]}.jsonl"
    path = Path(cache) if cache else own
    found = KeyedFile(path, f"the replies of {model}", _reply)
    if len(found):
        print_line(
            f"{model}: {len(found)} replies in {found.path} answer requests that were made before. If the server has "
            "other weights now, give them a name of their own, or another cache."
        )
    return found
