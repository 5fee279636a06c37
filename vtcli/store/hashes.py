"""sha256 of files that lie outside the store, computed again only where a file may have changed.

Known hashes are kept in one JSON file: path to size, times and sha256. A file that was changed less than two seconds
before it was hashed is not kept there. A second change within the clock's tick would not be seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.errors import InputError
from vtcli.store import disk
from vtcli.store.manifest import hash_file

MISSING = "missing"
"""Stands for the digest of a file that does not exist: the stage that wants to read it raises."""

SETTLED_S = 2.0
"""Some file systems round times to whole seconds."""


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that are too many to be named one by one, as the images of a million rows. ``paths`` gives them again and
    again, in one order; a file that comes twice counts once."""

    paths: Callable[[], Iterable[Path]]

    def unique(self) -> Iterator[Path]:
        """The files, each once. A file takes about 100 bytes of memory meanwhile."""
        seen: set[bytes] = set()
        for path in self.paths():
            key = hashlib.blake2b(os.fsencode(path), digest_size=16).digest()
            if key not in seen:
                seen.add(key)
                yield path

    def mark(self) -> tuple[str, float]:
        """A digest of the paths, sizes and times of all files, and the latest time of change."""
        found, latest = hashlib.sha256(), 0.0
        for path in self.unique():
            with disk.checked(path, "read"):
                stat = path.stat() if path.is_file() else None
            found.update(repr((str(path), stat and (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))).encode())
            latest = max(latest, stat.st_mtime, stat.st_ctime) if stat else latest
        return found.hexdigest(), latest

    def digest(self) -> str:
        """A digest of the paths and contents of all files."""
        found = hashlib.sha256()
        for path in self.unique():
            with disk.checked(path, "read"):
                content = hash_file(path) if path.is_file() else MISSING
            found.update(repr((str(path), content)).encode())
        return found.hexdigest()


def digests(files: Mapping[str, Path | FileGroup], memory: Path) -> dict[str, str]:
    """The sha256 of every file, by its name in ``files``; ``memory`` is the JSON file of known hashes.

    Size, time of change and time of the last change of the inode (which no program can set) decide whether a file is
    hashed again. Raises ``InputError`` for a file that cannot be read.
    """
    if not files:
        return {}
    known = _load(memory)
    before, out = dict(known), dict[str, str]()
    for name in sorted(files):
        path = files[name]
        if isinstance(path, FileGroup):
            mark, latest = path.mark()
            entry = known.get(name)
            if not (isinstance(entry, list) and entry[:1] == [mark]):
                entry = [mark, path.digest()]
                if time.time() - latest > SETTLED_S:
                    known[name] = entry
            out[name] = str(entry[1])
            continue
        key = str(path.absolute())
        with disk.checked(path, "read"):
            if not path.is_file():
                out[name] = MISSING
                continue
            stat = path.stat()
            # ctime as well: ``cp -p`` and ``touch -d`` set mtime back, but no program sets ctime.
            mark = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
            entry = known.get(key)
            if not (isinstance(entry, list) and entry[:3] == mark):
                entry = [*mark, hash_file(path)]
                if time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED_S:
                    known[key] = entry
            out[name] = str(entry[3])
    if known != before:
        disk.write_atomic(memory, json.dumps(known).encode(), durable=False)
    return out


def _load(memory: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(memory.read_text())) if memory.exists() else {}
    except (OSError, ValueError, InputError):
        return {}  # what is known can be found again
