"""Folder of the workspaces without a mount of their own: one for each template, held by a lock. The lock ends with
the template's last process, however it ends. The next template removes the folders without a lock."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from vtcli.sandbox.confinement import workspace
from vtcli.sandbox.confinement.privileges import CANDIDATES

PREFIX = "vtcli-sandbox-"


def make() -> tuple[str, int]:
    """A new folder, and the descriptor that holds it."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if _lock(held) and Path(path).is_dir():
            return path, held
        os.close(held)  # swept by another template before it was locked


def sweep(parent: Path) -> None:
    """Removes the folders in ``parent`` that belong to this user, or to a user that root becomes, and are not held."""
    owners = {os.geteuid(), *(CANDIDATES if os.geteuid() == 0 else ())}
    for path in parent.glob(f"{PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_uid in owners and _lock(fd):
                workspace.remove(str(path))
        finally:
            os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
