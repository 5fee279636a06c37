"""Every state of a folder that a kill could leave: what lies in it before each change that a run makes.

``recorded`` runs something once. Before each change below a folder (a file opened to be written, renamed, linked,
removed, cut or synced, a folder made) it notes what lies there. Two states that follow each other give one more, in
which new content is cut in half, as a kill in the middle of a write leaves it. ``Moment.restore`` puts a state back,
so that the same command can be given again: it must not notice that the state is not the work of a killed process.

``full_disk`` lets one change and all later ones fail instead, as a full disk does.

Python's audit events show the changes wherever they are made, also by libraries, but for what libraries write in their
own C code, which the next event shows, and for fsync and write of an open file, which are wrapped.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHANGES = ("os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.symlink")
FREEING = ("os.remove", "os.rmdir", "os.chmod")
"""Changes that a full disk allows."""
FOLDER = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.chmod": 2, "os.rename": 2, "os.link": 2}
"""Where an event has the open folder that a name is relative to; -1: none."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Observer = Callable[[str, Path], None]
_observers: list[Observer] = []


@dataclass(frozen=True, slots=True)
class File:
    inode: int  # files of one inode are links of each other
    mode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of ``root``; ``None`` in ``files`` is a folder. ``change`` says what came next. In one that is ``torn``
    the last thing that was appended to a file is cut in half."""

    root: Path
    change: str
    files: dict[str, File | None]
    torn: bool = False

    def digest(self) -> str:
        found = hashlib.sha256()
        for name, file in sorted(self.files.items()):
            found.update(repr((plain(name), file and (file.mode, hashlib.sha256(file.content).digest()))).encode())
        return found.hexdigest()

    def restore(self) -> None:
        """Makes ``root`` as it was then."""
        there = _scan(self.root, {})
        for name in sorted(there, reverse=True):
            if self.files.get(name, File) != there[name]:
                path = self.root / name
                path.rmdir() if there[name] is None else path.unlink()
        links: dict[int, Path] = {}
        for name, file in sorted(self.files.items()):
            path = self.root / name
            if file is None:
                path.mkdir(exist_ok=True)
            elif there.get(name) != file:
                if file.inode in links:
                    path.hardlink_to(links[file.inode])
                else:
                    path.write_bytes(file.content)
                    path.chmod(file.mode)
            if file is not None:
                links.setdefault(file.inode, path)


@dataclass
class Recorder:
    root: Path
    moments: list[Moment] = field(default_factory=list[Moment])
    changes: int = 0
    _known: dict[tuple[int, int, int], File] = field(default_factory=dict[tuple[int, int, int], File])
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, change: str, path: Path) -> None:
        with self._guard:  # nobody else's change comes between
            self.changes += 1
            files = _scan(self.root, self._known)
            if not self.moments or self.moments[-1].files != files:
                self.moments.append(Moment(self.root, f"{change} {plain(path.relative_to(self.root))}", files))

    def first(self, name: str, holds: Callable[[bytes], bool]) -> Moment:
        """The first moment at which a file that matches ``name`` has content for which ``holds`` is true."""
        for moment in self.moments:
            for path, file in moment.files.items():
                if file is not None and Path(path).match(name) and holds(file.content):
                    return moment
        raise AssertionError(f"no such moment of {name}")

    def every(self) -> list[Moment]:
        """All different moments in order, each after the one that is cut in the middle of what was written."""
        found: dict[str, Moment] = {}
        for before, after in zip([self.moments[0], *self.moments], self.moments, strict=False):
            for moment in (_halfway(before, after), after):
                found.setdefault(moment.digest(), moment)
        return list(found.values())


def plain(name: object) -> str:
    """A path without what chance gave it: random names and digests."""
    return re.sub(r"[0-9a-f]{8,}", "#", str(name))


@contextmanager
def recorded(root: Path) -> Iterator[Recorder]:
    """Notes all changes of this process below ``root``."""
    recorder = Recorder(root)
    with _observed(root, recorder):
        yield recorder


@contextmanager
def full_disk(root: Path, number: int) -> Iterator[list[str]]:
    """Lets the ``number``-th change below ``root`` and all later ones fail, but for those that free something. Yields
    the changes so far."""
    seen: list[str] = []

    def observe(change: str, path: Path) -> None:
        if change in FREEING:
            return
        seen.append(f"{change} {plain(path.relative_to(root))}")
        if len(seen) >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with _observed(root, observe):
        yield seen


@contextmanager
def _observed(root: Path, observer: Observer) -> Iterator[None]:
    _install()
    here = f"{root}{os.sep}"

    def below(change: str, path: Path) -> None:
        if str(path).startswith(here):
            observer(change, path)

    _observers.append(below)
    try:
        yield
    finally:
        _observers.remove(below)


@functools.cache
def _install() -> None:
    """Once: an audit hook cannot be taken away again."""
    sys.addaudithook(_audit)
    sync, write = os.fsync, os.write

    def fsync(handle: int) -> None:
        if _observers:
            _tell("fsync", _opened(handle))
        sync(handle)

    def written(handle: int, data: bytes, /) -> int:
        if _observers:
            _tell("write", _opened(handle))
        return write(handle, data)

    os.fsync, os.write = fsync, written


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _observers or event not in ("open", *CHANGES):
        return
    name = arguments[0]
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING):
        return
    if isinstance(name, int):
        path = _opened(name) if event != "open" else None
    else:
        path = Path(os.fsdecode(name))
        handle = arguments[FOLDER[event]] if event in FOLDER else -1
        path = _opened(handle) / path if handle >= 0 else path.absolute()
    if path is not None:
        _tell(event, path)


def _opened(handle: int) -> Path:
    return Path(f"/proc/self/fd/{handle}").readlink()


def _tell(change: str, path: Path) -> None:
    for observer in list(_observers):
        observer(change, path)


def _scan(root: Path, known: dict[tuple[int, int, int], File]) -> dict[str, File | None]:
    """Everything below ``root`` by its name. ``known`` has what was read of files by inode, size and time."""
    found: dict[str, File | None] = {}
    for path in root.rglob("*"):
        try:
            about = path.stat()
            if stat.S_ISDIR(about.st_mode):
                file = None
            else:
                key = (about.st_ino, about.st_size, about.st_mtime_ns)
                file = known.get(key)
                if file is None or file.mode != stat.S_IMODE(about.st_mode):
                    known[key] = file = File(about.st_ino, stat.S_IMODE(about.st_mode), path.read_bytes())
        except FileNotFoundError:  # a library's own thread removed it meanwhile
            continue
        found[str(path.relative_to(root))] = file
    return found


def _halfway(before: Moment, after: Moment) -> Moment:
    """``after``, where what each file got since ``before`` is cut in half."""
    files, torn = dict(after.files), False
    for name, file in after.files.items():
        old = before.files.get(name)
        if file is None or (old is not None and old.inode == file.inode and len(old.content) >= len(file.content)):
            continue
        if old is None and any(o is not None and o.inode == file.inode for o in before.files.values()):
            continue  # renamed or linked: such a change is whole or not at all
        start = len(old.content) if old is not None and old.inode == file.inode else 0
        torn = torn or start > 0
        cut = file.content[: (start + len(file.content)) // 2]
        files[name] = File(file.inode, file.mode, cut)
    return Moment(after.root, f"in the middle of what came before {after.change}", files, torn)
