"""Writing to a disk that may be full, read-only or shared: atomic files, locks, and errors that a user can act on."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from vtcli.errors import InputError

LEFTOVER = ".vtcli-tmp"
"""The ending of temporary files' names."""

HOME = "point `home` at another folder"
"""Advice on where else to write, for what belongs into the home."""

_held: set[int] = set()

_REMEDIES = {
    errno.ENOSPC: "The disk is full: free some space there, or {elsewhere}.",
    errno.EDQUOT: "Your disk quota is used up: free some space there, or {elsewhere}.",
    errno.EFBIG: "The file would exceed the file size limit (`ulimit -f`): raise it, or {elsewhere}.",
    errno.EACCES: "You have no permission: change the folder's rights, or {elsewhere}.",
    # As of an immutable file (chattr +i).
    errno.EPERM: "You have no permission: change the folder's rights, or {elsewhere}.",
    errno.EROFS: "The file system is read-only: {elsewhere}.",
    errno.ENOENT: "It does not exist: check the path.",
    errno.ENOTDIR: "A part of the path is a file, not a folder: check the path.",
}


class LockHeld(InputError):
    """A lock that another process has."""


def io_error(error: OSError, path: Path | str, doing: str, elsewhere: str = HOME) -> InputError:
    """An ``OSError`` for the user: the attempt, the place, the cause, and the remedy. ``elsewhere`` is advice where
    else to write."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):  # of a tree: (source, target, reason) each
        _, path, reason = error.args[0][0]
        return InputError(f"Cannot {doing} {path}: {reason}. Check the path and the disk.")
    remedy = _REMEDIES.get(error.errno or 0, "Check the path and the disk.").format(elsewhere=elsewhere)
    return InputError(f"Cannot {doing} {path}: {error.strerror or error}. {remedy}")


@contextmanager
def checked(path: Path | str, doing: str = "write", elsewhere: str = HOME) -> Generator[None]:
    """Turns any ``OSError`` of the block into an ``InputError`` that names ``path``, as ``io_error`` has it."""
    try:
        yield
    except OSError as error:
        raise io_error(error, path, doing, elsewhere) from error


def fsync_dir(path: Path) -> None:
    """Makes the names in a folder durable."""
    # A rename is durable only once its folder is: fsync of the file does not cover its name.
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_file(path: Path) -> None:
    """Makes a file's content durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def temporary(path: Path) -> Path:
    """A name beside ``path``, to write to before renaming. ``LEFTOVER`` marks files of a killed process."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{LEFTOVER}")


@contextmanager
def replaced(path: Path, durable: bool = True) -> Generator[Path]:
    """A name beside ``path`` to write to. ``path`` then has all of it, or is untouched whenever the process is killed.

    ``durable`` also survives a power cut (fsync of file and folder). Raises ``InputError`` for any disk trouble.
    """
    temp = temporary(path)
    with checked(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temp
            if durable:
                fsync_file(temp)
            temp.replace(path)
        except BaseException:  # Ctrl-C and a cancelled task leave no temporary file either
            temp.unlink(missing_ok=True)
            raise
        if durable:
            fsync_dir(path.parent)


def write_atomic(path: Path, data: bytes, durable: bool = True) -> None:
    """Writes ``data`` as ``replaced`` has it."""
    with replaced(path, durable) as temp:
        temp.write_bytes(data)


@contextmanager
def locked(path: Path, wait_s: float, what: str) -> Generator[None]:
    """Holds an exclusive lock on ``path``. The kernel frees it when the process ends, in any way.

    The file keeps the holder's process id for the error message. ``what``: the guarded thing, for example "the
    work folder of sft".

    Raises:
        LockHeld: the lock is still taken after ``wait_s`` seconds.
    """
    # Monotonic: a clock that is set back would make the wait endless.
    deadline = time.monotonic() + wait_s
    while (handle := _open_locked(path)) is None:
        if time.monotonic() >= deadline:
            raise LockHeld(
                f"The lock {path} ({what}) is held by process {_holder(path)}; waited {wait_s:g} s. "
                f"Wait for that process to end, or stop it, and run the same command again."
            )
        # Polled, because a blocking flock has no time limit.
        time.sleep(0.05)
    _held.add(handle)
    try:
        with checked(path, "write the lock"):
            # Written after the lock is held, so the id in the file is the holder's and not that of one who waits.
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        if handle in _held:  # a forked worker has closed its copy, and the parent's lock is not its to remove
            _held.discard(handle)
            with suppress(OSError):
                path.unlink(missing_ok=True)  # while it is held: see ``_open_locked``
            os.close(handle)


def _open_locked(path: Path) -> int | None:
    """Opens and locks ``path``; None where another process has the lock. A file that its holder removed between our
    opening and locking is no longer the lock, so the file is opened again."""
    while True:
        with checked(path, "open the lock"):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            locked = _try_lock(handle, path)
        except BaseException:
            os.close(handle)
            raise
        if not locked:
            os.close(handle)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def is_free(path: Path) -> bool:
    """True if no process holds the lock ``path``, which need not exist."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # without O_CREAT: a look makes no file
    except FileNotFoundError:
        return True
    try:
        return _try_lock(handle, path)
    finally:
        os.close(handle)


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, 524)  # 524: ENOTSUPP, of Linux alone


def _try_lock(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise InputError(
            f"Cannot lock {path}: its file system has no locks ({error.strerror}), so two runs could write one folder. "
            "Choose a folder on another one with VTCLI_HOME, or mount it with locks (flock)."
        ) from error
    return True


def _drop_inherited() -> None:
    """Closes inherited locks in a forked worker. It would keep them when its parent is killed."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)
