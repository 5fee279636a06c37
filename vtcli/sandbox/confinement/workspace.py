"""Files of an episode, as the guard sees them: usage, a snapshot before a run, and its restoration.

The guard is trusted and the folder is not. The guard opens nothing through a symbolic link and reads only regular
files. Every walk has limits. So names, loops, pipes and races in the folder cannot lead outside it or block the guard.
Code may make folders and files that their owner may not read. The guard, also an owner, restores the permission.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vtcli.sandbox.waits import CLEAR_S

MAX_DEPTH = 64
READ_ONLY = 0o444
COPIED = frozenset({stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK})
LEAST = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o400}  # the rights that an owner needs to look into it
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
    identity: tuple[int, int] = (0, 0)  # inode and ctime, which no process can set


@dataclass(slots=True)
class Workspace:
    """The folder of an episode. ``given``: the input files by name. They are written without write permission. So a
    file with the same identity still has the same bytes and need not be read before each run."""

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
        """Bytes and names in the folder. A file counts with its length or its disk usage, whichever is more, because
        a copy may take either. Raises ``WorkspaceLimit`` when the folder exceeds its limits or could not be copied,
        ``OSError`` when it cannot be read."""
        total = files = 0
        for _, found, _ in self._walk():
            files += 1
            total += max(found.st_blocks * 512, found.st_size if stat.S_ISREG(found.st_mode) else 0)
            if stat.S_IFMT(found.st_mode) not in COPIED:
                raise WorkspaceLimit("a pipe or a device in the workspace")
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
        """Makes the folder hold exactly ``entries``, with their modes and times. A file that is still the same one
        gets its bytes back in place. So processes that have it open or mapped see them too, and no room is needed
        for a second file. Raises ``OSError``, ``WorkspaceLimit``."""
        now: set[bytes] = set()
        try:
            found = {relative: found for relative, found, _ in self._walk()}
            now = {relative for relative in sorted(found, reverse=True) if self._kept(relative, found, entries)}
        except (WorkspaceLimit, OSError):  # too much, too deep
            clear(self.path)
            now.clear()
        for relative in sorted(entries):
            self._put(relative, entries[relative], relative in now)
        for relative in sorted(entries, reverse=True):
            self._dress_folder(relative, entries[relative])

    def _kept(self, relative: bytes, found: Mapping[bytes, os.stat_result], entries: Mapping[bytes, Entry]) -> bool:
        """Returns True if the file or folder can become the entry of that name; otherwise removes it. A file that
        has grown is truncated at once, because other files may need the room."""
        entry, status = entries.get(relative), found[relative]
        if entry is None or not self._alike(entry, status):
            self._remove(relative, status)
            return False
        if stat.S_ISREG(status.st_mode) and status.st_size > len(entry.content or b""):
            folder = self._parent(relative)
            try:
                fd = _writable(_base(relative), folder)
            finally:
                os.close(folder)
            try:
                os.ftruncate(fd, len(entry.content or b""))
            finally:
                os.close(fd)
        return True

    def _alike(self, entry: Entry, found: os.stat_result) -> bool:
        if stat.S_ISREG(found.st_mode) and (found.st_ino != entry.identity[0] or found.st_nlink != 1):
            return False
        return stat.S_IFMT(found.st_mode) == stat.S_IFMT(entry.mode | self._kind(entry))

    def _walk(self) -> Iterator[tuple[bytes, os.stat_result, int]]:
        """Relative names with their status and the descriptor of their folder, folders before their entries. It is
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
                        found = _looked_at(name, folder)
                    except FileNotFoundError:
                        continue
                    below = relative + b"/" + name if relative else name
                    yield below, found, folder
                    if stat.S_ISDIR(found.st_mode):
                        pending.append((below, depth + 1))
            finally:
                os.close(folder)

    def _open_folder(self, relative: bytes) -> int | None:
        """A descriptor of a folder, reached name by name and never through a link; None when it is gone. Raises
        ``OSError`` when it is there and cannot be opened."""
        folder = os.open(self.path, FOLDER_FLAGS)
        for name in relative.split(b"/") if relative else ():
            try:
                below = os.open(name, FOLDER_FLAGS, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError):
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

    def _put(self, relative: bytes, entry: Entry, there: bool) -> None:
        """Makes one name equal to ``entry``; ``there``: something of the same kind is, and a file is the same one."""
        folder = self._parent(relative)
        name = _base(relative)
        try:
            if entry.content is None:
                if not there:
                    os.mkdir(name, 0o700, dir_fd=folder)
                return
            if stat.S_ISLNK(entry.mode):
                if not there or os.readlink(name, dir_fd=folder) != entry.content:
                    _unlink(name, folder)
                    os.symlink(entry.content, name, dir_fd=folder)
                return
            given = self.given.get(relative) is entry
            if there and given and entry.identity == identity(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                return
            if not there or not _same(name, folder, entry):
                _write(name, folder, entry, not there)
            if given:
                self.given[relative] = replace(entry, identity=identity(os.stat(name, dir_fd=folder)))
        finally:
            os.close(folder)

    def _dress_folder(self, relative: bytes, entry: Entry) -> None:
        """Mode and times of a folder, when all is in it."""
        if entry.content is not None:
            return
        folder = self._open_folder(relative)
        if folder is not None:
            try:
                _dress(folder, entry)
            finally:
                os.close(folder)


def clear(path: bytes) -> None:
    """Removes everything in a folder of any size, depth and mode. A folder below the first level is moved up to it,
    so that paths stay short. Raises ``OSError``, ``WorkspaceLimit``."""
    top = os.open(path, FOLDER_FLAGS)
    until = time.monotonic() + CLEAR_S
    try:
        moved = 0
        while names := _names(top):
            if time.monotonic() > until:
                raise WorkspaceLimit("the workspace cannot be cleared")
            for name in names:
                if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=top)
                    continue
                folder = _opened(name, top)
                try:
                    for below in _names(folder):
                        if stat.S_ISDIR(os.stat(below, dir_fd=folder, follow_symlinks=False).st_mode):
                            moved += 1
                            os.close(_opened(below, folder))  # or its `..` could not be changed
                            os.rename(below, f".moved-{os.getpid()}-{moved}", src_dir_fd=folder, dst_dir_fd=top)
                        else:
                            os.unlink(below, dir_fd=folder)
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def remove(path: str) -> None:
    """Removes a folder with all that is in it; what cannot be removed stays."""
    try:
        clear(os.fsencode(path))
        Path(path).rmdir()
    except (OSError, WorkspaceLimit):
        return


def _opened(name: bytes, folder: int) -> int:
    """A descriptor of a folder in another one, which its owner may list and change from now on."""
    try:
        fd = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)
        fd = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    mode = os.fstat(fd).st_mode
    if mode & 0o700 != 0o700:
        os.fchmod(fd, stat.S_IMODE(mode) | 0o700)
    return fd


def _looked_at(name: bytes, folder: int) -> os.stat_result:
    """The status of a name, which its owner may look into from now on. Raises ``OSError``."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    least = LEAST.get(stat.S_IFMT(found.st_mode), 0)
    if found.st_mode & least == least:
        return found
    os.chmod(name, stat.S_IMODE(found.st_mode) | least, dir_fd=folder)
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


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


def _same(name: bytes, folder: int, entry: Entry) -> bool:
    """Compares a file with the entry's bytes. If they are equal, sets its mode and times to the entry's."""
    fd = os.open(name, FILE_FLAGS, dir_fd=folder)
    try:
        content = entry.content or b""
        same = os.fstat(fd).st_size == len(content) and _read(fd, len(content)) == content
        if same:
            _dress(fd, entry)
        return same
    finally:
        os.close(fd)


def _writable(name: bytes, folder: int) -> int:
    """A descriptor to write to a file that is there."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)


def _write(name: bytes, folder: int, entry: Entry, new: bool) -> None:
    """Writes the bytes, into a new file or over an existing one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=folder) if new else _writable(name, folder)
    try:
        view = memoryview(entry.content or b"")
        os.ftruncate(fd, len(view))
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], done)
        _dress(fd, entry)
    finally:
        os.close(fd)


def _dress(fd: int, entry: Entry) -> None:
    """Mode and times as of the entry."""
    found = os.fstat(fd)
    if stat.S_IMODE(found.st_mode) != entry.mode:
        os.fchmod(fd, entry.mode)
    if found.st_mtime_ns != entry.times_ns[1]:
        os.utime(fd, ns=entry.times_ns)
