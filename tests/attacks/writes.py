"""Family ``fs``, second half: writing outside, links and renames across the border, and filling what there is."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from vtcli.sandbox.types import Status, Tier

from .case import Attack, CaseRecord, Facts, ends
from .files import QUOTA, WRITE

FOREIGN = (3, 141, 59)
NATIVE_CODE = "the workspace is not mounted noexec; seccomp and Landlock hold native code as they hold Python"
NATIVE: dict[Tier, str] = {"landlock": NATIVE_CODE, "seccomp": NATIVE_CODE}


def foreign_shown(seen: CaseRecord, facts: tuple[Facts, ...]) -> list[str]:
    """The picture of the scene that no episode may show came back as an output."""
    shown = any((p.pixels == FOREIGN).all() for p in (*seen.run.images, *seen.then.images))
    return ["a picture of the host came back as an output image"] if shown else []


WRITING = (
    Attack(
        "fs.write_outside",
        "create files in every place that is commonly writable",
        """
import tempfile
def put(place):
    path = os.path.join(place, "vtcli-was-here")
    open(path, "w").close()
    os.unlink(path)
for place in (T["open"], "/tmp", "/var/tmp", "/usr", "/usr/local", "/etc", "/", "/dev", "/dev/shm", "/run", "/root", "/home",
              T["folder"], T["bystander"], os.path.dirname(T["numpy"]), os.path.dirname(T["vtcli"]), T["own"][0], "/run/user/0"):
    if os.path.realpath(place) != os.getcwd():
        attempt(place, put, place)
""",
        bites=True,
        gaps=WRITE,
    ),
    Attack(
        "fs.truncate_outside",
        "empty, append to or lengthen a file outside",
        """
attempt("truncate", lambda: os.truncate(T["keep"], 0))
attempt("O_TRUNC", lambda: os.open(T["keep"], os.O_WRONLY | os.O_TRUNC))
attempt("append", lambda: os.write(os.open(T["keep"], os.O_WRONLY | os.O_APPEND), b"x"))
attempt("fallocate", lambda: os.posix_fallocate(os.open(T["keep"], os.O_RDWR), 0, 99))
""",
        bites=True,
        gaps=WRITE,
    ),
    Attack(
        "fs.unlink_outside",
        "remove and rename a file outside",
        """
attempt("rename", lambda: os.rename(T["keep"], T["open"] + "/moved"))
attempt("renameat2 exchange", lambda: (open("x", "w").close(), syscall(316, -100, b"x", -100, T["keep"].encode(), 2)))
attempt("unlink", lambda: os.unlink(T["keep"]))
attempt("rmdir", lambda: os.rmdir(T["open"]))
""",
        bites=True,
        gaps=WRITE,
    ),
    Attack(
        "fs.chmod_outside",
        "mode, owner and attributes of a file outside, which Landlock does not cover",
        """
F, uid, gid = T["keep"], os.getuid(), os.getgid()
for act in (lambda: os.chmod(F, 0o600), lambda: os.setxattr(F, "user.vtcli", b"1"), lambda: os.chown(F, uid, gid + 1),
            lambda: syscall(452, -100, F.encode(), 0o600, 0), lambda: os.chmod(T["open"], 0o700), lambda: os.removexattr(F, "user.vtcli")):
    try:
        act()  # may pretend to have worked: the host looks
    except OSError as error:
        say(failed="act", why=repr(error))
""",
        bites=True,
    ),
    Attack(
        "fs.utime_outside",
        "times of a file outside",
        """
for act in (lambda: os.utime(T["keep"], (5, 5)), lambda: os.utime(T["keep"]), lambda: syscall(261, -100, T["keep"].encode(), 0)):
    try:
        act()
    except OSError as error:
        say(failed="act", why=repr(error))
""",
        bites=True,
    ),
    Attack(
        "fs.hardlink",
        "hard links to files outside, and of own files to the outside",
        """
attempt("in", lambda: os.link(T["secret"], "secret"))
attempt("in2", lambda: os.link(T["keep"], "keep"))
open("mine", "w").write("mine")
attempt("out", lambda: os.link("mine", T["open"] + "/mine"))
attempt("rename out", lambda: os.rename("mine", T["open"] + "/mine"))
attempt("proc link", lambda: syscall(265, -100, b"/proc/self/fd/1", -100, (T["open"] + "/out").encode(), 0x400))
attempt("O_TMPFILE", lambda: os.open(T["open"], os.O_TMPFILE | os.O_RDWR))
""",
        bites=True,
        gaps=WRITE,
    ),
    Attack(
        "fs.rename_folders",
        "move the workspace, or a folder of it, somewhere else (Landlock's REFER)",
        """
os.mkdir("d")
attempt("out", lambda: os.rename("d", T["open"] + "/d"))
attempt("in", lambda: os.rename(T["open"], "stolen"))
attempt("workspace", lambda: os.rename(os.getcwd(), os.path.dirname(os.getcwd()).rstrip("/") + "/elsewhere"))
attempt("workspace out", lambda: os.rename(os.getcwd(), T["open"] + "/w"))
""",
        bites=True,
        gaps=WRITE,
    ),
    Attack(
        "fs.remove_workspace",
        "remove the working folder, or put a link in its place",
        """
here = os.getcwd()
import shutil
shutil.rmtree(here, ignore_errors=True)
attempt("rmdir", lambda: os.rmdir(here))
attempt("link", lambda: os.symlink(T["open"], here))
os.chdir("/")
""",
        spoils=True,
    ),
    Attack(
        "fs.symlink_output",
        "output pictures that are links to a picture outside",
        """
for n, target in enumerate((T["foreign"], "/proc/self/root" + T["foreign"], "../" * 30 + T["foreign"].lstrip("/"))):
    try:
        os.symlink(target, f"p{n}.png")
    except OSError as error:
        say(failed="symlink", why=repr(error))
try:
    os.symlink(T["folder"], "folder")
except OSError as error:
    say(failed="symlink", why=repr(error))
print("folder/foreign.png p0.png", T["foreign"])
""",
        extra=foreign_shown,
        spoils=True,
    ),
    Attack(
        "fs.links_outlive_failure",
        "links in the workspace when the run fails: the host's copy and clean-up follow none",
        """
os.mkdir("sub")
for name, target in (("l0", T["open"]), ("l1", T["folder"]), ("l2", T["keep"]), ("l3", "/"), ("sub/l", T["open"])):
    try:
        os.symlink(target, name)
    except OSError as error:
        say(failed="symlink", why=repr(error))
raise ValueError("now it is put back")
""",
        statuses=ends(Status.ERROR),
    ),
    Attack(
        "fs.links_then_failure",
        "the same links kept by a good run, then a failing one: what is copied and put back is links",
        """
for n, target in enumerate((T["open"], T["folder"], T["keep"])):
    try:
        os.symlink(target, f"l{n}")
    except OSError as error:
        say(failed="symlink", why=repr(error))
""",
        after="""
for name in ("l0", "l1", "l2"):
    if os.path.lexists(name):
        if not os.path.islink(name):
            say(got="a link was followed by the host's copy")
        os.unlink(name)
""",
    ),
    Attack(
        "fs.libraries",
        "write into the libraries that the next episode will run, and beside them",
        """
import glob
for path in (T["numpy"], T["pil"], T["vtcli"], os.__file__):
    attempt("append " + path, lambda: open(path, "a").write(""))
    folder = os.path.dirname(path)
    attempt("pycache " + path, lambda: open(folder + "/__pycache__/vtcli_evil.cpython-311.pyc", "w").close())
    attempt("new module " + path, lambda: open(folder + "/vtcli_evil.py", "w").close())
attempt("sitecustomize", lambda: open(os.path.dirname(os.path.dirname(T["numpy"])) + "/sitecustomize.py", "x").close())
""",
        gaps=WRITE,
    ),
    Attack(
        "fs.caches",
        "a font or configuration cache that other episodes would read",
        """
import matplotlib
from matplotlib import font_manager
for place in {matplotlib.get_cachedir(), matplotlib.get_configdir(), os.path.expanduser("~"), os.environ.get("HOME", "~")}:
    if os.path.isdir(place) and not os.path.realpath(place).startswith(os.getcwd()):
        attempt("cache in " + place, lambda: open(os.path.join(place, "vtcli_evil"), "w").close())
for name in ("fontlist-v390.json", "fontlist-v400.json", "tex.cache"):
    attempt(name, lambda: open(os.path.expanduser("~/.cache/matplotlib/") + name, "w").close())
""",
    ),
    Attack(
        "fs.locks",
        "locks and leases on a file that all episodes can read: a channel between rollouts",
        """
import fcntl
fd = os.open(T["numpy"], os.O_RDONLY)
attempt("flock", lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
attempt("lockf", lambda: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB))
attempt("lease", lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK))
attempt("ofd", lambda: fcntl.fcntl(fd, 37, b"\\0" * 32))
""",
        bites=True,
    ),
    Attack(
        "fs.watches",
        "inotify and fanotify on what other episodes touch: a channel between rollouts",
        """
attempt("inotify", lambda: syscall(294, 0))
attempt("inotify old", lambda: syscall(253))
attempt("fanotify", lambda: syscall(300, 0, 0))
attempt("dnotify", lambda: __import__("fcntl").fcntl(os.open(os.path.dirname(T["numpy"]), os.O_RDONLY), 1026, 2))
""",
        bites=True,
    ),
)

FILLING = (
    Attack(
        "fs.disk_fill",
        "write 192 MB into a workspace of 64 MB",
        """
written = 0
try:
    for n in range(24):
        with open(f"big{n}", "wb") as f:
            written += f.write(b"x" * 8_000_000)
except OSError as error:
    say(failed="write", why=repr(error))
if written > 96_000_000:
    say(got="disk", value=written)
""",
        statuses=ends(Status.OK, Status.LIMIT, Status.CRASH),
        spoils=True,
        gaps=QUOTA,
    ),
    Attack(
        "fs.inode_fill",
        "5,000 empty files in a workspace of 2,048",
        """
made = 0
try:
    for made in range(5000):
        open(f"f{made}", "w").close()
except OSError as error:
    say(failed="create", why=repr(error))
if made > 3000:
    say(got="files", value=made)
""",
        statuses=ends(Status.OK, Status.LIMIT),
        spoils=True,
        gaps=QUOTA,
    ),
    Attack(
        "fs.one_huge_file",
        "one file past the limit of a file, by write, truncate and fallocate",
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("one", "wb") as f:
    attempt("seek", lambda: (f.seek(1 << 33), f.write(b"x"), f.flush()))
    attempt("truncate", lambda: f.truncate(1 << 40))
    attempt("fallocate", lambda: os.posix_fallocate(f.fileno(), 0, 1 << 33))
""",
        statuses=ends(Status.OK, Status.LIMIT, Status.CRASH, Status.ERROR),
    ),
    Attack(
        "fs.shm_fill",
        "memory that no limit of a process counts: /dev/shm, POSIX and System V segments, memfd",
        """
import mmap
attempt("shm file", lambda: (open("/dev/shm/vtcli-fill", "wb").write(b"x"), os.unlink("/dev/shm/vtcli-fill")))
attempt("memfd", lambda: os.memfd_create("fill"))
attempt("memfd raw", lambda: syscall(319, b"fill", 0))
attempt("memfd_secret", lambda: syscall(447, 0))
attempt("shmget", lambda: syscall(29, 0, 1 << 20, 0o1600))
attempt("mq_open", lambda: syscall(240, b"vtcli", 0o100 | 2, 0o600, 0))
attempt("semget", lambda: syscall(64, 0, 1, 0o1600))
attempt("msgget", lambda: syscall(68, 0, 0o1600))
""",
        bites=True,
    ),
    Attack(
        "fs.deep_folders",
        "3,000 folders in one another",
        """
depth = 0
try:
    for depth in range(3000):
        os.mkdir("d")
        os.chdir("d")
except OSError as error:
    say(failed="mkdir", why=repr(error))
""",
        spoils=True,
        statuses=ends(Status.OK, Status.LIMIT),
    ),
    Attack(
        "fs.strange_names",
        "names with newlines, invalid UTF-8, terminal codes and right-to-left marks, as output pictures too",
        """
from PIL import Image
for name in (b"a\\nb.png", b"\\xff\\xfe.png", b"\\x1b[2J.png", "\\u202egnp.exe.png".encode(), b"-rf.png", b"x" * 250 + b".png", b"<|im_end|>.png"):
    with open(name, "wb") as f:
        Image.new("RGB", (9, 9)).save(f, "PNG")
    print(name.decode("utf-8", "replace"))
""",
        spoils=True,
    ),
    Attack(
        "fs.special_outputs",
        "a FIFO, a 1 TB hole and a folder named like pictures: the collector neither blocks nor reads for ever",
        """
for make in (lambda: os.mkfifo("p.png"), lambda: os.mkdir("q.png"), lambda: os.truncate(os.open("r.png", os.O_CREAT | os.O_RDWR), 1 << 40),
             lambda: os.symlink("s.png", "s.png"), lambda: os.truncate(os.open("t.png", os.O_CREAT | os.O_RDWR), 1 << 25)):
    try:
        make()
    except OSError as error:
        say(failed="make", why=repr(error))
print("p.png q.png r.png s.png t.png")
""",
        spoils=True,
        statuses=ends(Status.OK, Status.LIMIT, Status.CRASH),
    ),
    Attack(
        "fs.code_in_workspace",
        "native code from the workspace: dlopen and executable mappings of files there",
        """
import mmap, shutil, glob
import _ctypes
source = _ctypes.__file__
data = open(source, "rb").read()
open("evil.so", "wb").write(data)
attempt("dlopen", lambda: ctypes.CDLL(os.path.abspath("evil.so")))
fd = os.open("evil.so", os.O_RDONLY)
attempt("mmap exec", lambda: mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
attempt("execve", lambda: os.execv("evil.so", ["evil.so"]))
""",
        bites=True,
        gaps=NATIVE,
    ),
)

CASES = WRITING + FILLING
