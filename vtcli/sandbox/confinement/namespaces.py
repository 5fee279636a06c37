"""Namespaces: a private root with nothing of the host but libraries, a workspace with a quota, own process ids.

Sources: user_namespaces(7), pid_namespaces(7), mount_namespaces(7), pivot_root(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vtcli.sandbox.confinement.kernel import (
    LIBC,
    ConfinementError,
    syscall,
)

NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
NEW_PIDS, NEW_NET = 0x20000000, 0x40000000
KINDS = {NEW_USER: "user", NEW_MOUNTS: "mount", NEW_PIDS: "pid", NEW_NET: "net", NEW_IPC: "ipc", NEW_UTS: "uts"}
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH, AT_EMPTY_PATH, AT_RECURSIVE, AT_FDCWD = 2, 0x1000, 0x8000, -100
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH, FSCONFIG_SET_STRING, FSCONFIG_CREATE = 1, 4, 1, 6

WORKSPACE = "/w"
EMPTY, SHARED = "/tmp", "/dev/shm"  # noqa: S108 - empty and read-only: folders for those who look for them
ROOT_QUOTA = "size=1m,nr_inodes=2048,mode=0755"


def unshare(flags: int) -> None:
    """Leaves the namespaces of these kinds for new ones. ConfinementError tells which kinds were asked for."""
    try:
        syscall("unshare", flags)
    except OSError as e:
        kinds = " ".join(name for bit, name in KINDS.items() if flags & bit)
        threads = "; the process must have one thread" if e.errno == errno.EINVAL else ""
        raise ConfinementError("namespaces", f"unshare ({kinds}): {e.strerror}{threads}") from e


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """``mount(2)``; OSError names the target."""
    arguments = (source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if LIBC.mount(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def write_maps(proc: int, process: str, uid: int, gid: int) -> None:
    """One user and one group of the parent namespace keep their numbers in ``process``'s new user namespace; all
    others do not exist in it. ``proc``: an open folder /proc that shows the process."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"{process}/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def detached(readable: Sequence[str], required: Iterable[str], devices: Iterable[str]) -> dict[str, int]:
    """Path in the new root -> a read-only copy of its mount, not yet mounted. The copies are of ``devices`` and of
    ``readable`` (files and folders, at their own paths and at their real ones). A path below another one is left
    out, because that one shows it. The call needs CAP_SYS_ADMIN over the mount namespace. With it in the host's
    mount namespace, a process may read more than the process that mounts the copies. Raises ``ConfinementError``
    when a required path is not available."""
    found: dict[str, int] = {}
    must, special = set(required), set(devices)
    wanted = dict.fromkeys(p for path in (*readable, *special) for p in (os.path.realpath(path), path))
    for path in sorted(wanted, key=len):
        if any(Path(path).is_relative_to(known) for known in found):
            continue
        try:
            tree = syscall("open_tree", AT_FDCWD, os.fsencode(path), OPEN_TREE_CLONE | os.O_CLOEXEC | AT_RECURSIVE)
            _set_attributes(tree, MS_RDONLY | MS_NOSUID | (0 if path in special else MS_NODEV))
        except OSError as e:
            if path in must:
                raise ConfinementError("private root", f"{path} cannot be mounted: {e.strerror}") from e
        else:
            found[path] = tree
    return found


def _set_attributes(tree: int, flags: int) -> None:
    """``mount_setattr(2)`` on a copied mount and those below it: flags as of ``mount(2)``, and no events of mounts pass
    between it and its original."""
    attributes = (ctypes.c_uint64 * 4)(flags, 0, MS_PRIVATE, 0)  # set, clear, propagation, user namespace
    syscall("mount_setattr", tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, ctypes.byref(attributes), 32)


def private_root(trees: Mapping[str, int], required: Iterable[str]) -> None:
    """Replaces the root, in the calling process's own mount namespace, by an empty, read-only one. It holds ``trees``
    (of ``detached``, which it closes), an empty folder ``/w``, and ``/proc`` of the caller's pid namespace if the
    kernel grants one. Raises ``ConfinementError`` when a required path cannot be read there."""
    mount("", "/", "", MS_REC | MS_PRIVATE)
    staging = next(p for p in ("/tmp", "/run", "/mnt", "/var", "/usr") if Path(p).is_dir())  # noqa: S108 - hidden by us
    mount("tmpfs", staging, "tmpfs", MS_NOSUID | MS_NODEV, ROOT_QUOTA)
    for path, tree in trees.items():
        _attach(tree, staging + path)
    for folder in (WORKSPACE, "/proc", EMPTY, SHARED):
        Path(staging + folder).mkdir(parents=True, exist_ok=True)
    try:
        mount("proc", staging + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        pass  # parts of the host's /proc are hidden: no /proc here, and ``own_proc`` will return None
    os.chdir(staging)
    syscall("pivot_root", b".", b".")
    syscall("umount2", b".", MNT_DETACH)  # the old root, which pivot_root left on top of the new one
    os.chdir("/")
    mount("", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    for path in required:
        if not os.access(path, os.R_OK | os.X_OK):
            raise ConfinementError("private root", f"user {os.geteuid()} may not read {path}")


def _attach(tree: int, target: str) -> None:
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    syscall("move_mount", tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def quota_workspace(megabytes: int, inodes: int) -> None:
    """An empty file system in memory at ``/w``, of this mount namespace alone, that holds so much and no more."""
    options = f"size={megabytes}m,nr_inodes={inodes + 1},mode=0700"  # the folder itself is an inode
    mount("workspace", WORKSPACE, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)


def own_proc() -> int | None:
    """Opens /proc of the calling process's pid namespace without a mount point. Only the holder of the O_PATH
    descriptor can open files in it, and the folder cannot be listed. The template's /proc is covered in this mount
    namespace. None if the kernel refuses (older than 5.8, or inside a container with parts of /proc hidden)."""
    try:
        return _proc()
    except OSError:
        return None
    finally:
        mount(EMPTY, "/proc", "", MS_BIND)  # an unmount would wait for the whole machine, some milliseconds


def _proc() -> int:
    context = syscall("fsopen", b"proc", 1)
    try:
        syscall("fsconfig", context, FSCONFIG_SET_STRING, b"subset", b"pid", 0)
        syscall("fsconfig", context, FSCONFIG_CREATE, 0, 0, 0)
        return syscall("fsmount", context, 1, MS_NOSUID | MS_NODEV | MS_NOEXEC)
    finally:
        os.close(context)
