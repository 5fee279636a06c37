"""The files of an episode, as the guard sees them: usage, a copy taken before a run, and putting it back.

The guard is trusted and the folder is not: nothing is opened through a symbolic link, only regular files are read, and
every walk has limits, so that names, loops, pipes and races in the folder cannot lead outside it or hold the guard.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

MAX_DEPTH = 64
READ_ONLY = 0o444
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WorkspaceLimit(Exception):
    """The folder holds more than it may, or something that cannot be copied."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name below the folder. ``content``: the bytes of a file, the target of a link, None for a folder."""

    mode: int
    content: bytes | None
    times_ns: tuple[int, int] = (0, 0)
    identity: tuple[int, int] = (0, 0)  # inode and time of its last change, which nobody can set


@dataclass(slots=True)
class Workspace:
    """The folder of an episode. ``given``: the input files by name, which are written without the right to write, so
    that a file with the same identity still has the same bytes and need not be read before each run."""

    path: bytes
    max_bytes: int
    max_files: int
    given: dict[bytes, Entry] = field(default_factory=dict[bytes, Entry])

    def give(self, name: str, fd: int) -> None:
        """Writes an input file from a sealed descriptor. Raises ``OSError``."""
        full = Path(os.fsdecode(self.path), name)
        full.parent.mkdir(parents=True, exist_ok=True)
        content = os.pread(fd, os.fstat(fd).st_size, 0)
        with full.open("xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), READ_ONLY)
        found = full.lstat()
        self.given[os.fsencode(name)] = Entry(
            READ_ONLY, content, (found.st_atime_ns, found.st_mtime_ns), identity(found)
        )

    def usage(self) -> tuple[int, int]:
        """Bytes and names in the folder. Raises ``WorkspaceLimit`` when it is beyond its limits."""
        total = files = 0
        for _, found, _ in self._walk():
            files += 1
            total += found.st_blocks * 512
            if files > self.max_files or total > self.max_bytes:
                raise WorkspaceLimit(f"the workspace holds more than {self.max_bytes} bytes or {self.max_files} files")
        return total, files

    def snapshot(self) -> dict[bytes, Entry]:
        """All that is in the folder. Raises ``WorkspaceLimit``, ``OSError``."""
        entries: dict[bytes, Entry] = {}
        total = 0
        for relative, found, folder in self._walk():
            entry = self._entry(relative, found, folder)
            entries[relative] = entry
            total += len(entry.content or b"")
            if total > self.max_bytes or len(entries) > self.max_files:
                raise WorkspaceLimit("the workspace is larger than it may be")
        return entries

    def restore(self, entries: Mapping[bytes, Entry]) -> None:
        """Makes the folder hold exactly ``entries``. Raises ``OSError``."""
        now: dict[bytes, os.stat_result] = {}
        try:
            now = {relative: found for relative, found, _ in self._walk()}
            for relative in sorted(now, reverse=True):
                kept = entries.get(relative)
                if kept is None or stat.S_IFMT(now[relative].st_mode) != stat.S_IFMT(kept.mode | self._kind(kept)):
                    self._remove(relative, now.pop(relative))
        except (WorkspaceLimit, OSError):  # too much, too deep, or folders without the right to look into them
            self._clear()
            now.clear()
        for relative in sorted(entries):
            self._put(relative, entries[relative], now.get(relative))

    def _walk(self) -> Iterator[tuple[bytes, os.stat_result, int]]:
        """Relative names with their status and the descriptor of their folder, folders before what is in them. It is
        stopped at twice the number of allowed names."""
        seen = 0
        pending: list[tuple[bytes, int]] = [(b"", 0)]
        while pending:
            relative, depth = pending.pop()
            folder = self._open_folder(relative)
            if folder is None:
                continue
            try:
                for name in _names(folder):
                    seen += 1
                    if seen > 2 * self.max_files or depth > MAX_DEPTH:
                        raise WorkspaceLimit("too many names, or folders too deep, in the workspace")
                    try:
                        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    below = relative + b"/" + name if relative else name
                    yield below, found, folder
                    if stat.S_ISDIR(found.st_mode):
                        pending.append((below, depth + 1))
            finally:
                os.close(folder)

    def _clear(self) -> None:
        """Removes everything, however much and however deep: a folder below the first level is moved up to it, so that
        the way to it stays short. Raises ``OSError``."""
        top = os.open(self.path, FOLDER_FLAGS)
        try:
            moved = 0
            while names := _names(top):
                for name in names:
                    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                        os.unlink(name, dir_fd=top)
                        continue
                    os.chmod(name, 0o700, dir_fd=top)  # it was made without the right to look into it
                    folder = os.open(name, FOLDER_FLAGS, dir_fd=top)
                    try:
                        for below in _names(folder):
                            if stat.S_ISDIR(os.stat(below, dir_fd=folder, follow_symlinks=False).st_mode):
                                moved += 1
                                os.chmod(below, 0o700, dir_fd=folder)  # or its `..` could not be changed
                                os.rename(below, f".moved-{os.getpid()}-{moved}", src_dir_fd=folder, dst_dir_fd=top)
                            else:
                                os.unlink(below, dir_fd=folder)
                    finally:
                        os.close(folder)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)

    def _open_folder(self, relative: bytes) -> int | None:
        """A descriptor of a folder, reached name by name and never through a link; None when it is gone."""
        folder = os.open(self.path, FOLDER_FLAGS)
        for name in relative.split(b"/") if relative else ():
            try:
                below = os.open(name, FOLDER_FLAGS, dir_fd=folder)
            except OSError:
                return None
            finally:
                os.close(folder)
            folder = below
        return folder

    def _entry(self, relative: bytes, found: os.stat_result, folder: int) -> Entry:
        times = (found.st_atime_ns, found.st_mtime_ns)
        mode = stat.S_IMODE(found.st_mode)
        name = _base(relative)
        if stat.S_ISDIR(found.st_mode):
            return Entry(mode, None, times, identity(found))
        if stat.S_ISLNK(found.st_mode):
            return Entry(stat.S_IFLNK, os.readlink(name, dir_fd=folder), times, identity(found))
        given = self.given.get(relative)
        if given is not None and given.identity == identity(found):
            return given
        if not stat.S_ISREG(found.st_mode) or found.st_size > self.max_bytes:
            raise WorkspaceLimit("a pipe, a device or a huge file in the workspace")
        fd = os.open(name, FILE_FLAGS, dir_fd=folder)
        try:
            return Entry(mode, _read(fd, self.max_bytes), times, identity(found))
        finally:
            os.close(fd)

    @staticmethod
    def _kind(entry: Entry) -> int:
        if entry.content is None:
            return stat.S_IFDIR
        return 0 if stat.S_IFMT(entry.mode) else stat.S_IFREG

    def _parent(self, relative: bytes) -> int:
        folder = self._open_folder(relative.rpartition(b"/")[0])
        if folder is None:
            raise WorkspaceLimit("a folder of the workspace is gone")
        return folder

    def _remove(self, relative: bytes, found: os.stat_result) -> None:
        folder = self._parent(relative)
        try:
            name = _base(relative)
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)

    def _put(self, relative: bytes, entry: Entry, now: os.stat_result | None) -> None:
        """Makes one name what ``entry`` says; ``now``: its status, of the same kind, None when it is not there."""
        if now is not None and entry.identity == identity(now) and self.given.get(relative) is entry:
            return
        folder = self._parent(relative)
        name = _base(relative)
        try:
            if entry.content is None:
                if now is None:
                    os.mkdir(name, entry.mode, dir_fd=folder)
                return
            if stat.S_ISLNK(entry.mode):
                if now is None or os.readlink(name, dir_fd=folder) != entry.content:
                    _unlink(name, folder)
                    os.symlink(entry.content, name, dir_fd=folder)
                return
            if now is not None and entry.identity[0] == now.st_ino and self._same(name, folder, entry.content):
                return
            _unlink(name, folder)
            _write(name, folder, entry)
            if self.given.get(relative) is entry:
                self.given[relative] = replace(entry, identity=identity(os.stat(name, dir_fd=folder)))
        finally:
            os.close(folder)

    def _same(self, name: bytes, folder: int, content: bytes) -> bool:
        fd = os.open(name, FILE_FLAGS, dir_fd=folder)
        try:
            return os.fstat(fd).st_size == len(content) and _read(fd, len(content)) == content
        finally:
            os.close(fd)


def _names(folder: int) -> list[bytes]:
    with os.scandir(folder) as entries:
        return [os.fsencode(entry.name) for entry in entries]


def _base(relative: bytes) -> bytes:
    return relative.rpartition(b"/")[2]


def identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_ino, found.st_ctime_ns


def _read(fd: int, longest: int) -> bytes:
    """All bytes of a regular file, at most ``longest``. Raises ``WorkspaceLimit``."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise WorkspaceLimit("not a regular file")
    parts: list[bytes] = []
    total = 0
    while part := os.pread(fd, 1 << 20, total):
        total += len(part)
        if total > longest:
            raise WorkspaceLimit("a file of the workspace is larger than it may be")
        parts.append(part)
    return b"".join(parts)


def _unlink(name: bytes, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _write(name: bytes, folder: int, entry: Entry) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        view = memoryview(entry.content or b"")
        while view:
            view = view[os.write(fd, view) :]
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=entry.times_ns)
    finally:
        os.close(fd)
