"""Family ``fs``: files of the host, read, written, listed, linked, and reached by other names."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from vtcli.sandbox.types import Status, Tier

from .case import Attack, ends

STAT: dict[Tier, str] = {
    "landlock": "Landlock does not cover stat(): existence, size and times of host files can be seen",
    "seccomp": "the host's files can be read",
}
READ: dict[Tier, str] = {"seccomp": "the host's files can be read"}
WRITE: dict[Tier, str] = {"seccomp": "the host's files can be written where the uid may"}
QUOTA: dict[Tier, str] = {
    "landlock": "no quota by the kernel: the guard looks at the workspace now and then, a fast writer overshoots",
    "seccomp": "no quota by the kernel",
}

READING = (
    Attack(
        "fs.read_passwd",
        "open /etc/passwd",
        'attempt("passwd", lambda: open("/etc/passwd").read())',
        bites=True,
        gaps=READ,
    ),
    Attack("fs.read_shadow", "open /etc/shadow", 'attempt("shadow", lambda: open("/etc/shadow").read())', gaps=READ),
    Attack(
        "fs.list_homes",
        "list the host's folders",
        """
for place in ("/root", "/home", "/var", "/srv", "/mnt", "/media", "/boot", "/tmp", T["folder"], T["bystander"]):
    try:
        names = [n for n in os.listdir(place) if not any(o.startswith(os.path.join(place, n)) for o in T["own"])]
    except OSError:
        continue
    names = [n for n in names if os.path.realpath(os.path.join(place, n)) != os.getcwd()]
    if names and os.path.realpath(place) != os.getcwd():
        say(got="listing of " + place, value=names[:5])
""",
        bites=True,
        gaps=READ,
    ),
    Attack(
        "fs.read_secret",
        "a world-readable file outside, through every opener there is",
        """
import cv2, io, pathlib
import numpy as np
import matplotlib.image
from PIL import Image
S, F = T["secret"], T["foreign"]
attempt("open", lambda: open(S).read())
attempt("io", lambda: io.FileIO(S).read())
attempt("os.open", lambda: os.read(os.open(S, os.O_RDONLY), 99))
attempt("pathlib", lambda: pathlib.Path(S).read_text())
attempt("numpy", lambda: np.fromfile(S, dtype="uint8"))
attempt("memmap", lambda: np.memmap(S, mode="r"))
attempt("pil", lambda: Image.open(F).getpixel((0, 0)))
attempt("pyplot", lambda: matplotlib.image.imread(F).shape)
picture = cv2.imread(F)
if picture is not None:
    say(got="cv2.imread", value=picture[0, 0].tolist())
""",
        bites=True,
        gaps=READ,
    ),
    Attack(
        "fs.read_raw_calls",
        "the same file by open, openat, openat2 and creat as plain system calls",
        """
import struct
S = T["secret"].encode()
attempt("open", lambda: syscall(2, S, 0, 0))
attempt("openat", lambda: syscall(257, -100, S, 0, 0))
how = ctypes.create_string_buffer(struct.pack("QQQ", 0, 0, 0))
attempt("openat2", lambda: syscall(437, -100, S, how, 24))
attempt("O_PATH", lambda: os.read(os.open(T["secret"], os.O_PATH), 9))
attempt("truncate", lambda: syscall(76, T["keep"].encode(), 0))
attempt("readlink", lambda: syscall(89, b"/proc/1/exe", ctypes.create_string_buffer(99), 99))
""",
        bites=True,
        gaps=READ,
    ),
    Attack(
        "fs.stat_secret",
        "stat() of a file outside",
        'attempt("stat", lambda: os.stat(T["secret"]).st_size)',
        bites=True,
        gaps=STAT,
    ),
    Attack(
        "fs.stat_kinds",
        "existence by access, statx, readlink, statfs, inode by name_to_handle",
        """
attempt("access", lambda: os.access(T["secret"], os.F_OK) or 1 / 0)
attempt("statx", lambda: syscall(332, -100, T["secret"].encode(), 0, 0xFFF, ctypes.create_string_buffer(256)))
attempt("statvfs", lambda: os.statvfs(T["folder"]))
attempt("handle", lambda: syscall(303, -100, T["secret"].encode(), ctypes.create_string_buffer(256), ctypes.create_string_buffer(8), 0))
""",
        bites=True,
        gaps=STAT,
    ),
    Attack(
        "fs.dotdot",
        "climb out of the workspace by dots",
        """
attempt("dots", lambda: open("../" * 40 + "etc/passwd").read())
attempt("dots2", lambda: open(os.getcwd() + "/.." * 40 + T["secret"]).read())
fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
attempt("openat", lambda: os.read(os.open("../" * 40 + T["secret"].lstrip("/"), os.O_RDONLY, dir_fd=fd), 99))
""",
        bites=True,
        gaps=READ,
    ),
    Attack(
        "fs.symlink_read",
        "links in the workspace to files outside, then read through them",
        """
for name, target in (("a", "/etc/passwd"), ("b", T["secret"]), ("c", T["folder"]), ("d", "/proc/1/root")):
    try:
        os.symlink(target, name)
    except OSError:
        continue
attempt("a", lambda: open("a").read())
attempt("b", lambda: open("b").read())
attempt("c", lambda: open("c/secret.txt").read())
attempt("d", lambda: os.listdir("d"))
""",
        bites=True,
        gaps=READ,
    ),
    Attack(
        "fs.proc_tricks",
        "the host through /proc: root, cwd, exe, fd, map_files of oneself and of pid 1, parent, host",
        """
OWN = {"/", "/w"} | set(T["own"])
for pid in ("self", "1", str(os.getppid()), str(T["host"]), str(T["victim"]), "thread-self"):
    for name in ("root/etc/passwd", "cwd" + "/.." * 30 + T["secret"], "root" + T["secret"], "environ", "mem", "maps"):
        if pid in ("self", "thread-self") and name in ("mem", "maps"):
            continue
        try:
            leaks(open(f"/proc/{pid}/{name}", "rb").read(100000)) or pid in ("self", "thread-self") or say(got=f"{pid}/{name}")
        except OSError:
            pass
for name in ("kcore", "kallsyms", "sysrq-trigger", "sys/kernel/core_pattern", "sys/kernel/hostname", "keys", "sched_debug", "timer_list", "kmsg"):
    try:
        fd = os.open("/proc/" + name, os.O_WRONLY if "/" in name or "sysrq" in name else os.O_RDONLY)
        say(got="/proc/" + name)
    except OSError:
        pass
""",
        bites=True,
        gaps=READ,
    ),
    Attack(
        "fs.proc_secret_in_environ",
        "the host's environment in /proc/*/environ of every process that can be seen",
        """
try:
    pids = [p for p in os.listdir("/proc") if p.isdigit()]
except OSError:
    pids = []
for pid in set(pids) | {"1", str(os.getppid()), str(T["host"]), str(T["victim"])}:
    for name in ("environ", "cmdline"):
        try:
            leaks(open(f"/proc/{pid}/{name}", "rb").read())
        except OSError:
            pass
""",
        bites=True,
        gaps=READ,
    ),
    Attack(
        "fs.open_fds",
        "what is open already: no folder, no file of the host",
        """
for fd in range(1024):
    try:
        s = os.fstat(fd)
    except OSError:
        continue
    if stat.S_ISDIR(s.st_mode):
        say(got=f"folder behind fd {fd}")
    if stat.S_ISBLK(s.st_mode):
        say(got=f"block device behind fd {fd}")
    if stat.S_ISREG(s.st_mode) and s.st_nlink:
        say(got=f"named file behind fd {fd}", value=s.st_size)
    attempt(f"fchdir {fd}", os.fchdir, fd) if stat.S_ISDIR(s.st_mode) else None
""",
    ),
    Attack(
        "fs.reopen_fds",
        "reopen what is open for reading through /proc/self/fd and /dev/fd, now for writing",
        """
import fcntl
for fd in range(3, 1024):
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        s = os.fstat(fd)
    except OSError:
        continue
    if stat.S_ISREG(s.st_mode) and flags & os.O_ACCMODE == os.O_RDONLY:
        for folder in ("/proc/self/fd", "/dev/fd", f"/proc/{os.getpid()}/fd", "/proc/thread-self/fd"):
            try:
                os.write(os.open(f"{folder}/{fd}", os.O_RDWR), b"overwritten")
                say(got=f"written through {folder}/{fd}")
            except OSError:
                pass
""",
    ),
    Attack(
        "fs.open_by_handle",
        "open_by_handle_at on the root's inode (the container break of 2014)",
        """
import struct
handle = ctypes.create_string_buffer(struct.pack("IiQ", 8, 1, 2) + b"\\0" * 120)
for fd in (-100, *range(0, 40)):
    try:
        syscall(304, fd, handle, 0)
        say(got=f"handle by fd {fd}")
    except OSError:
        pass
""",
    ),
    Attack(
        "fs.search_everything",
        "walk all that can be seen and read each file that is not Python's for the secret",
        """
seen = 0
end = time.monotonic() + 3
for folder, below, names in os.walk("/"):
    if any(folder.startswith(o) for o in T["own"]) or folder.startswith(("/sys", "/usr/lib", "/lib", "/usr/share")):
        below[:] = []
        continue
    if folder.startswith("/proc/") and folder.count("/") > 2:
        below[:] = []
    for name in names[:200]:
        path = os.path.join(folder, name)
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                leaks(open(path, "rb").read(4096))
                seen += 1
        except OSError:
            pass
    if time.monotonic() > end or seen > 3000:
        break
""",
        gaps=READ,
    ),
    Attack(
        "fs.toctou_link",
        "flip a name between a good picture and a link outside while the host collects",
        """
import threading
from PIL import Image
Image.new("RGB", (8, 8), (9, 9, 9)).save("good.png")
stop = time.monotonic() + 1.0
def flip():
    while time.monotonic() < stop:
        for target in ("good.png", T["foreign"]):
            try:
                os.symlink(target, "next")
                os.replace("next", "t.png")
            except OSError:
                pass
threading.Thread(target=flip, daemon=True).start()
time.sleep(0.2)
""",
        spoils=True,
        extra=lambda seen, facts: (
            ["a picture of the host came back"]
            if any((p.pixels == (3, 141, 59)).all() for p in seen.run.images)
            else []
        ),
        statuses=ends(Status.OK, Status.ERROR, Status.LIMIT),
    ),
)
