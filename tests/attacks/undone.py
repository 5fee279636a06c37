"""Families ``fs`` and ``iso``, third part: what is to slip past the guard's looks at the workspace, or to outlive a run
that is undone."""

from __future__ import annotations

from vtcli.sandbox.types import Status

from .case import Attack, ends

SLOW_FILL = """
written = 0
try:
    for n in range(24):
        with open(f"{place}big{n}", "wb") as f:
            written += f.write(b"x" * 8_000_000)
        time.sleep(0.1)
except OSError as error:
    say(failed="write", why=repr(error))
if written > 150_000_000:
    say(got="disk", value=written)
"""
"""192 MB into a workspace of 64 MB, slowly enough for the guard to see it."""

STOPPED = ends(Status.OK, Status.LIMIT, Status.CRASH)

CASES = (
    Attack(
        "fs.closed_folder_fill",
        "fill a folder that its owner may enter and not list",
        'os.mkdir("closed", 0o300)\nplace = "closed/"\n' + SLOW_FILL,
        statuses=STOPPED,
        spoils=True,
    ),
    Attack(
        "fs.busy_gate_fill",
        "fill the workspace while a thread asks for forks, so that the guard always has something to answer",
        """
import threading
def ask():
    while True:
        _LIBC.syscall(ctypes.c_long(56), ctypes.c_long(17), 0, 0, 0, 0)
        time.sleep(0.05)
try:
    pid = os.fork()
except OSError:
    threading.Thread(target=ask, daemon=True).start()  # never where forks are let through
else:
    if pid == 0:
        os._exit(0)
place = ""
"""
        + SLOW_FILL,
        statuses=STOPPED,
        spoils=True,
    ),
    Attack(
        "fs.unreadable",
        "files and folders that nobody may read, and a device in a name's place: the next run cannot copy them",
        """
os.umask(0o777)
open("u", "w").close()
os.close(os.open("w", os.O_CREAT | os.O_WRONLY, 0o200))
os.mkdir("d", 0)
def whiteout():
    syscall(316, -100, b"u", -100, b"moved", 4)
    mode = os.lstat("u").st_mode
    if not stat.S_ISCHR(mode):
        raise OSError("no device")
attempt("whiteout", whiteout)
""",
        after='os.umask(0o022)\nfor name in ("u", "w", "d"): os.lstat(name)\n',
    ),
    Attack(
        "fs.holes",
        "two files of 40 MB without a byte in them: more than a copy may hold",
        'for name in ("a", "b"):\n    os.ftruncate(os.open(name, os.O_CREAT | os.O_RDWR), 40 << 20)',
        statuses=ends(Status.LIMIT),
    ),
    Attack(
        "fs.disk_facts",
        "how full the file systems are, which other episodes fill too",
        """
for place in (".", "/", os.path.dirname(T["numpy"])):
    attempt("statfs " + place, lambda: os.statvfs(place))
    attempt("fstatfs " + place, lambda: os.fstatvfs(os.open(place, os.O_RDONLY)))
""",
        bites=True,
    ),
    Attack(
        "iso.output_offset",
        "the output's flags and place are changed by a run that fails: what later runs print is lost",
        """
import fcntl
fcntl.fcntl(1, fcntl.F_SETFL, 0)
os.lseek(1, 1 << 30, 0)
raise ValueError("undone")
""",
        statuses=ends(Status.ERROR),
        finishes=False,
    ),
    Attack(
        "iso.modes_undone",
        "a folder without any right, in the place of one that was there, left by a run that fails",
        """
os.unlink("kept.txt")
os.mkdir("kept.txt", 0)
os.mkdir("new", 0o300)
open("new/x", "w").close()
raise ValueError("undone")
""",
        statuses=ends(Status.ERROR),
        finishes=False,
    ),
)
