"""Attempts that confinement must stop, each harmless if it succeeds.

An attempt returns when it failed as it should and raises ``GotThrough`` otherwise. Its docstring tells the report which
attempt it was. Some calls would do harm if they worked (exec, mount, clone). Their arguments make the kernel refuse
them with another error than the filter's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vtcli.sandbox.confinement.kernel import MACHINE, syscall
from vtcli.sandbox.types import RunLimits

LIMITS = RunLimits(
    cpu_s=10.0,
    memory_mb=1024,
    threads=4,
    open_files=64,
    output_bytes=2**20,
    file_mb=1,
    workspace_mb=2,
    workspace_files=16,
)
"""Small, so that reaching them is quick."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Targets outside that must stay out of reach: a file that everybody may read and write, and a process."""

    canary: str
    host: int
    guard: int


class GotThrough(Exception):
    """An attempt that must be stopped was not."""


Attempt = Callable[[Ground], None]
_MISSING = (errno.ENOSYS,) if MACHINE == "aarch64" else ()  # calls that a machine does not have


def _refused(name: str, attempt: Callable[[], object], *expected: int) -> None:
    """The attempt fails with one of these errors, by default any that a missing right gives."""
    codes = expected or (errno.EPERM, errno.EACCES, errno.ENOENT, errno.EROFS, errno.ENOSYS, errno.ESRCH)
    try:
        attempt()
    except OSError as e:
        if e.errno in codes:
            return
        raise GotThrough(
            f"{name} failed with {errno.errorcode.get(e.errno or 0, e.errno)}, not for lack of rights"
        ) from e
    # Python refuses some of these itself before the kernel is asked: also a refusal.
    except (RuntimeError, ValueError, MemoryError):
        return
    raise GotThrough(f"{name} worked")


def fs_read(ground: Ground) -> None:
    """open a file of the host that everybody may read, and /etc/passwd; list /proc"""
    _refused("reading a foreign file", lambda: os.open(ground.canary, os.O_RDONLY))
    _refused("reading /etc/passwd", lambda: os.open("/etc/passwd", os.O_RDONLY))
    _refused("listing /proc", lambda: os.listdir("/proc"))  # noqa: PTH208


def fs_write(ground: Ground) -> None:
    """write and empty a file of the host that everybody may write; make one beside it; append to a library"""
    _refused("writing a foreign file", lambda: os.open(ground.canary, os.O_WRONLY))
    _refused("emptying a foreign file", lambda: os.truncate(ground.canary, 0))
    _refused("emptying it as a reader", lambda: os.open(ground.canary, os.O_RDONLY | os.O_TRUNC))
    _refused("making a file outside", lambda: os.open(ground.canary + "2", os.O_WRONLY | os.O_CREAT))
    _refused("writing a library", lambda: os.open(os.__file__, os.O_WRONLY))
    _refused("removing a foreign file", lambda: Path(ground.canary).unlink())


def landlock(ground: Ground) -> None:
    """list /, which no other layer forbids"""
    del ground
    _refused("listing /", lambda: os.listdir("/"), errno.EACCES)  # noqa: PTH208


def fs_stat(ground: Ground) -> None:
    """stat a file of the host"""
    _refused("stat", lambda: os.stat(ground.canary))  # noqa: PTH116


def disk(ground: Ground) -> None:
    """write four times the quota of the workspace, and twice its number of files"""
    del ground

    def fill() -> None:
        for index in range(4 * LIMITS.workspace_mb):
            Path(f"big{index}").write_bytes(bytes(2**20))

    def litter() -> None:
        for index in range(2 * LIMITS.workspace_files):
            Path(f"small{index}").touch()

    try:
        _refused("filling the workspace", fill, errno.ENOSPC)
        _empty_workspace()
        _refused("filling the workspace with files", litter, errno.ENOSPC)
    finally:
        _empty_workspace()


def _empty_workspace() -> None:
    for path in Path().iterdir():
        path.unlink()


def process_ids(ground: Ground) -> None:
    """the guard is process 1 of a namespace that only it has"""
    if ground.guard != 1 or os.getppid() != 1:
        raise GotThrough("the process ids are the host's")


def net(ground: Ground) -> None:
    """socket in every family; socketpair of datagrams"""
    del ground
    for family in (*range(1, 18), 29, 31, 38, 40, 44):
        _refused(f"socket({family})", lambda f=family: syscall("socket", f, 1, 0))
    _refused("a datagram pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))


def execute(ground: Ground) -> None:
    """execve, execveat, posix_spawn"""
    del ground
    _refused("execve", lambda: os.execv("/none", ["none"]), errno.EPERM)  # noqa: S606
    _refused("execveat", lambda: syscall("execveat", -100, b"/none", 0, 0, 0), errno.EPERM)
    _refused("posix_spawn", lambda: os.posix_spawn("/none", ["none"], {}), errno.EPERM)


def fork(ground: Ground) -> None:
    """fork, clone with other flags than a thread's, clone3"""
    del ground

    def child() -> None:
        if os.fork() == 0:
            os._exit(0)

    _refused("fork", child, errno.EPERM)
    # 17 is SIGCHLD; the flags are ones that only a filter can refuse with EPERM.
    for flags in (0x800 | 17, 0x10000200 | 17, 0x20010000):  # the kernel itself says EINVAL to each
        _refused(f"clone({flags:#x})", lambda f=flags: syscall("clone", f, 0, 0, 0, 0), errno.EPERM)
    _refused("clone3", lambda: syscall("clone3", ctypes.create_string_buffer(88), 88), errno.ENOSYS)


def threads(ground: Ground) -> None:
    """a thread works; more than the limit do not"""
    del ground
    done = threading.Event()
    started: list[threading.Thread] = []

    def flood() -> None:
        for _ in range(LIMITS.threads + 8):
            started.append(threading.Thread(target=done.wait))
            try:
                started[-1].start()
            except RuntimeError:
                started.pop()
                raise

    try:
        _refused(f"starting {LIMITS.threads + 8} threads", flood)
    finally:
        done.set()
        for thread in started:
            thread.join()
    if not started:
        raise GotThrough("no thread can be started at all")


def signals(ground: Ground) -> None:
    """kill the guard, the host and everybody; by pidfd and by fcntl too"""
    for target in (ground.guard, ground.host, -1):
        _refused(f"kill({target})", lambda t=target: os.kill(t, 0))
        _refused(f"tgkill({target})", lambda t=target: syscall("tgkill", t, t, 0))
    _refused("pidfd_open", lambda: os.pidfd_open(ground.guard))
    with Path("owned").open("w") as file:
        _refused("F_SETOWN", lambda: fcntl.fcntl(file, fcntl.F_SETOWN, ground.guard))
    _empty_workspace()


def trace(ground: Ground) -> None:
    """ptrace, process_vm_readv, /proc/<guard>/mem"""
    _refused("PTRACE_TRACEME", lambda: syscall("ptrace", 0, 0, 0, 0))
    _refused("PTRACE_ATTACH", lambda: syscall("ptrace", 16, ground.guard, 0, 0))
    _refused("process_vm_readv", lambda: syscall("process_vm_readv", ground.guard, 0, 0, 0, 0, 0))
    _refused("/proc/<guard>/mem", lambda: os.open(f"/proc/{ground.guard}/mem", os.O_RDONLY))


def privileges(ground: Ground) -> None:
    """setuid, setgroups, capset, unshare, mount, chroot, raise a limit, clear dumpable's ban"""
    del ground
    _refused("setuid(0)", lambda: syscall("setuid", 0), errno.EPERM)
    _refused("setgroups", lambda: syscall("setgroups", 0, 0), errno.EPERM)
    _refused("capset", lambda: syscall("capset", 0, 0), errno.EPERM)
    _refused("unshare", lambda: syscall("unshare", 0x10000000), errno.EPERM)
    _refused("setns", lambda: syscall("setns", 0, 0), errno.EPERM)
    _refused("mount", lambda: syscall("mount", 0, 0, 0, 0, 0), errno.EPERM)
    _refused("chroot", lambda: os.chroot("."), errno.EPERM)
    _refused("PR_SET_DUMPABLE", lambda: syscall("prctl", 4, 1, 0, 0, 0), errno.EPERM)
    high = (LIMITS.open_files * 2, LIMITS.open_files * 2)
    _refused("raising a limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, high))


def kernel(ground: Ground) -> None:
    """io_uring, bpf, perf, userfaultfd, keyrings, modules, open_by_handle_at, seccomp itself, devices"""
    del ground
    for name in (
        *("io_uring_setup", "bpf", "perf_event_open", "userfaultfd", "open_by_handle_at", "init_module", "kexec_load"),
        *("seccomp", "fsopen", "personality", "swapon", "process_madvise", "kcmp", "landlock_create_ruleset", "iopl"),
        "quotactl",
    ):
        _refused(name, lambda n=name: syscall(n, 0, 0, 0, 0, 0), errno.EPERM, *_MISSING)
    _refused("mknod", lambda: os.mknod("device", 0o60600, os.makedev(8, 0)), errno.EPERM)


def channels(ground: Ground) -> None:
    """file locks and leases on a library, keys, inotify, shared memory, message queues, memfd, descriptors under way"""
    del ground
    with Path(os.__file__).open("rb") as shared:
        _refused("flock", lambda: fcntl.flock(shared, fcntl.LOCK_SH), errno.EPERM)
        _refused("lockf", lambda: fcntl.lockf(shared, fcntl.LOCK_SH), errno.EPERM)
        _refused("a lease", lambda: fcntl.fcntl(shared, 1024, 0), errno.EPERM)
    for name in ("add_key", "keyctl", "inotify_init1", "shmget", "msgget", "semget", "mq_open"):
        _refused(name, lambda n=name: syscall(n, 0, 0, 0, 0, 0), errno.EPERM)
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    _refused("sending a descriptor", lambda: socket.send_fds(ends[0], [b"x"], [2]), errno.EPERM)
    for end in ends:
        end.close()
    _refused("memfd_create", lambda: os.memfd_create("x"), errno.EPERM)


def memory(ground: Ground) -> None:
    """allocate twice the limit"""
    del ground
    _refused("allocating twice the limit", lambda: mmap.mmap(-1, 2 * LIMITS.memory_mb * 2**20), errno.ENOMEM)


def open_files(ground: Ground) -> None:
    """open twice the limit"""
    del ground
    held: list[int] = []
    try:
        _refused("too many open files", lambda: held.extend(map(os.dup, [2] * 2 * LIMITS.open_files)), errno.EMFILE)
    finally:
        for fd in held:
            os.close(fd)


def file_size(ground: Ground) -> None:
    """make one file larger than its limit"""
    del ground
    with Path("long").open("wb") as file:
        _refused("a long file", lambda: file.truncate(2**40), errno.EFBIG, errno.ENOSPC)
    _empty_workspace()


def user(ground: Ground) -> None:
    """the user is not root"""
    del ground
    if os.geteuid() == 0:
        raise GotThrough("user 0")


ATTEMPTS: dict[str, tuple[Attempt, str, str]] = {
    # name: (attempt, by what it is stopped at tier full, and at the others)
    "fs_read": (fs_read, "private root, landlock", "landlock"),
    "fs_stat": (fs_stat, "private root", ""),
    "fs_write": (fs_write, "private root, landlock", "landlock"),
    "landlock": (landlock, "landlock", "landlock"),
    "disk": (disk, "quota of the tmpfs", ""),
    "process_ids": (process_ids, "pid namespace", ""),
    "net": (net, "seccomp, net namespace", "seccomp"),
    "exec": (execute, "seccomp", "seccomp"),
    "fork": (fork, "seccomp, fork gate", "seccomp, fork gate"),
    "threads": (threads, "RLIMIT_NPROC in a user namespace", "fork gate"),
    "signal": (signals, "seccomp, pid namespace", "seccomp"),
    "ptrace": (trace, "seccomp, pid namespace", "seccomp"),
    "privileges": (privileges, "seccomp, no_new_privs, no capabilities", "seccomp, no_new_privs, no capabilities"),
    "kernel": (kernel, "seccomp", "seccomp"),
    "channels": (channels, "seccomp, ipc namespace", "seccomp"),
    "user": (user, "setresuid, or who started it", "setresuid, or who started it"),
    "memory": (memory, "RLIMIT_AS", "RLIMIT_AS"),
    "open_files": (open_files, "RLIMIT_NOFILE", "RLIMIT_NOFILE"),
    "file_size": (file_size, "RLIMIT_FSIZE", "RLIMIT_FSIZE"),
}
"""Attempts in the order of execution: attempts that remove the canary come after attempts that look at it."""
