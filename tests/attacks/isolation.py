"""Family ``iso``: from one episode to another, and from one run to the next."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vtcli.sandbox.types import Picture, Setup, Status

from .case import BREAKS_ITSELF, Attack, CaseRecord, Facts, ends


def with_file(setup: Setup) -> Setup:
    """The picture as a file in the workspace, too."""
    pictures = (*setup.pictures, Picture(setup.pictures[0].pixels, PNG))
    return replace(setup, pictures=pictures, image_files={"input_0.png": len(pictures) - 1})


def _png() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (30, 20), (1, 2, 3)).save(file, "PNG")
    return file.getvalue()


PNG = _png()


def loose(setup: Setup) -> Setup:
    """Without transactions: one process for all runs."""
    return replace(setup, transactions=False)


def many_pictures(setup: Setup) -> Setup:
    """Sixty-four pictures, more than the usual."""
    pixels = np.zeros((64, 64, 3), np.uint8)
    pictures = (*setup.pictures, *(Picture(pixels) for _ in range(63)))
    return replace(setup, pictures=pictures, variables={f"image_clue_{n}": n for n in range(64)})


def hostile_inputs(setup: Setup) -> Setup:
    """Files of the data set that are bombs, lies or nothing; neither host nor template decodes them."""
    files = [
        b"",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 64,
        b"GIF89a\xff\xff\xff\xff\xf7\0\0",
        b"\xff\xd8\xff\xe0" + b"\xff" * 5000,
    ]
    files += [
        b"II*\0\x08\0\0\0\x01\0\0\1\4\0\1\0\0\0\xff\xff\xff\x7f\x08\0\0\0",
        b"BM" + b"\xff" * 60,
        b"RIFF\xff\xff\xff\xffWEBPVP8X" + b"\xff" * 40,
    ]
    files += [
        b"<svg onload='x'/>" * 9,
        b"P6 99999999 99999999 255\n",
        b"\0\0\1\0\xff\xff" + b"\xff" * 99,
        PNG[:40],
        PNG + b"PK\x03\x04" * 99,
    ]
    pictures = (*setup.pictures, *(Picture(setup.pictures[0].pixels, f) for f in files))
    return replace(
        setup, pictures=pictures, image_files={f"input_{n}.png": len(setup.pictures) + n for n in range(len(files))}
    )


def no_image(seen: CaseRecord, facts: tuple[Facts, ...]) -> list[str]:
    """Files that are not pictures must not come back as such."""
    return ["a hostile file came back as a picture"] if any(p.pixels.size > 10**8 for p in seen.run.images) else []


CASES = (
    Attack(
        "iso.workspaces",
        "list, read and write the workspaces of other episodes",
        """
import glob
here = os.getcwd()
places = {T["bystander"], os.path.dirname(here), os.path.dirname(T["bystander"])} - {here}
for place in places:
    if os.path.realpath(place) in ("/", here):
        continue
    attempt("list " + place, lambda: os.listdir(place))
    attempt("write " + place, lambda: open(os.path.join(place, "evil.txt"), "w").close())
if T["bystander"] != here:
    attempt("read", lambda: open(os.path.join(T["bystander"], "kept.txt")).read())
""",
        bites=True,
    ),
    Attack(
        "iso.left_things",
        "what earlier episodes left in common places",
        """
for place in ("/tmp", "/dev/shm", "/var/tmp", "/dev/mqueue", "/run", os.path.expanduser("~")):
    try:
        names = [n for n in os.listdir(place) if os.path.join(place, n) != os.getcwd() and not any(o.startswith(os.path.join(place, n)) for o in T["own"])]
    except OSError:
        continue
    if names and os.path.realpath(place) != os.getcwd():
        say(got="listing of " + place, value=names[:5])
""",
        bites=True,
    ),
    Attack(
        "iso.picture_memory",
        "write into the shared picture: mprotect, memset, the array's flags, /proc/self/mem",
        """
import numpy as np
array = np.asarray(image_clue_0)
try:
    array.flags.writeable = True
    array[...] = 7
except ValueError as error:
    say(failed="flag", why=repr(error))
address = array.__array_interface__["data"][0]
start = address & ~4095
if _LIBC.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(4096), 3) == 0:
    ctypes.memset(start, 7, 4096)
else:
    say(failed="mprotect")
try:
    f = os.open("/proc/self/mem", os.O_RDWR)
    os.pwrite(f, b"\\7" * 64, address)
except OSError as error:
    say(failed="mem", why=repr(error))
""",
        spoils=True,
        statuses=BREAKS_ITSELF,
        finishes=False,
    ),
    Attack(
        "iso.all_mappings_written",
        "every mapping that is shared or read-only made writable and overwritten a little",
        """
try:
    lines = open("/proc/self/maps").read().splitlines()
except OSError:
    lines = []
for line in lines:
    if "memfd" in line or "/dev/shm" in line or " rw-s" in line or " r--s" in line:
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        if _LIBC.mprotect(ctypes.c_void_p(low), ctypes.c_size_t(high - low), 3) == 0:
            ctypes.memset(low, 9, high - low)
            say(written=line)
""",
        spoils=True,
        statuses=BREAKS_ITSELF,
        finishes=False,
    ),
    Attack(
        "iso.input_file",
        "the input's file removed, replaced, made a link",
        """
os.unlink("input_0.png")
os.symlink(T["foreign"], "input_0.png")
print("input_0.png")
raise ValueError("put it back")
""",
        after="""
from PIL import Image
if Image.open("input_0.png").getpixel((0, 0)) != (1, 2, 3):
    say(got="another input file")
""",
        setup=with_file,
        statuses=ends(Status.ERROR),
    ),
    Attack(
        "iso.thread_lives_on",
        "a thread left running into the next run",
        """
import threading
def work():
    while True:
        time.sleep(0.01)
        globals()["ticks"] = globals().get("ticks", 0) + 1
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""",
        after="""
before = globals().get("ticks", 0)
time.sleep(0.2)
if globals().get("ticks", 0) != before:
    say(got="a thread of the run before")
""",
    ),
    Attack(
        "iso.working_folder",
        "another working folder, umask and environment for the next run",
        """
os.chdir("/")
os.umask(0o077)
os.environ.clear()
os.environ["HOME"] = "/nowhere"
""",
        after="""
open("x.txt", "w").write("1")
assert open("x.txt").read() == "1"
os.unlink("x.txt")
""",
    ),
    Attack(
        "iso.umask",
        "a umask that takes all rights, so that later files cannot be opened",
        "os.umask(0o777)",
        after="""
open("x.txt", "w").write("1")
try:
    open("x.txt").read()
except OSError:
    say(got="the next run cannot read its own files")
os.unlink("x.txt")
""",
    ),
    Attack(
        "iso.timers",
        "timers armed in one run that fire in the next",
        """
import signal
signal.signal(signal.SIGALRM, lambda *a: os._exit(3))
signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
signal.alarm(1)
try:
    timer = ctypes.c_int(0)
    syscall(222, 1, 0, ctypes.byref(timer))
except OSError as error:
    say(failed="timer_create", why=repr(error))
""",
        after="time.sleep(0.3)\n",
    ),
    Attack(
        "iso.pending_signals",
        "signals blocked and pending when the run ends",
        """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT})
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
    try:
        os.kill(os.getpid(), number)
    except OSError as error:
        say(failed="kill", why=repr(error))
""",
    ),
    Attack(
        "iso.files_left_open",
        "all descriptors used up and kept",
        """
kept = []
try:
    while True:
        kept.append(open("kept.txt"))
except OSError as error:
    say(failed="open", why=repr(error))
""",
        statuses=ends(Status.OK, Status.LIMIT, Status.ERROR, Status.EXIT),
    ),
    Attack(
        "iso.files_left_open_failing",
        "all descriptors used up by a run that fails",
        """
builtins_kept = [os.dup(1) for _ in range(100)]
raise ValueError
""",
        after="""
fds = 0
for fd in range(4096):
    try:
        os.fstat(fd)
        fds += 1
    except OSError:
        pass
if fds > 64:
    say(got="descriptors of a failed run", value=fds)
""",
        statuses=ends(Status.ERROR),
    ),
    Attack(
        "iso.loose_timeout",
        "without transactions: a hang, and then an episode that works",
        "while True: pass",
        setup=lambda s: replace(s, transactions=False, limits=replace(s.limits, wall_s=1.0)),
        statuses=ends(Status.TIMEOUT),
        wall_limit_s=1.0,
        keeps=False,
    ),
    Attack(
        "iso.loose_thread",
        "without transactions: a thread that prints into the next run's output",
        """
import threading
def work():
    for _ in range(100):
        time.sleep(0.01)
        os.write(1, b"late\\n")
threading.Thread(target=work, daemon=True).start()
""",
        setup=loose,
        spoils=True,
    ),
    Attack(
        "iso.many_pictures",
        "sixty-four pictures, each once shown: none is mixed up, the limit holds",
        """
for n in range(64):
    globals()[f"image_clue_{n}"].show() if hasattr(globals()[f"image_clue_{n}"], "show") else None
""",
        setup=many_pictures,
        statuses=ends(Status.OK, Status.LIMIT),
    ),
    Attack(
        "iso.hostile_inputs",
        "an input file that claims to be a picture: bombs, lies, nothing at all",
        """
from PIL import Image
import cv2
for name in sorted(os.listdir(".")):
    if name.startswith("input"):
        try:
            Image.open(name).load()
        except Exception as error:
            say(failed=name, why=repr(error)[:99])
        cv2.imread(name)
        print(name)
""",
        setup=hostile_inputs,
        statuses=ends(Status.OK, Status.ERROR, Status.LIMIT, Status.OOM, Status.CRASH),
        extra=no_image,
    ),
    Attack(
        "iso.cpu_clock_channel",
        "the machine's load, uptime, boot id and temperature: signals between rollouts",
        """
for name in ("loadavg", "uptime", "stat", "meminfo", "vmstat", "interrupts", "diskstats", "sys/kernel/random/boot_id", "net/dev", "pressure/cpu", "cpuinfo", "mounts"):
    attempt(name, lambda: open("/proc/" + name).read())
for name in ("/sys/class/net", "/sys/kernel/debug", "/sys/fs/cgroup", "/sys/devices/system/cpu/cpu0/cpufreq", "/sys/class/thermal"):
    attempt(name, lambda: os.listdir(name))
""",
        bites=True,
    ),
    Attack(
        "iso.system_facts",
        "load and memory of the machine by system call",
        """
attempt("getloadavg", lambda: os.getloadavg())
def info():
    buffer = ctypes.create_string_buffer(256)
    syscall(99, buffer)
    return int.from_bytes(buffer.raw[:8], "little")
attempt("sysinfo", info)
""",
        bites=True,
    ),
    Attack(
        "iso.host_name",
        "the machine's name, which tells two episodes that they share it",
        """
def name():
    if os.uname().nodename != T["hostname"]:
        raise OSError("another name")
    return os.uname().nodename
attempt("uname", name)
""",
        gaps=dict.fromkeys(("landlock", "seccomp"), "uname() shows the host's name"),
        bites=True,
    ),
    Attack(
        "iso.stdin_flags",
        "flags of the open file that is descriptor 0, set by a run that fails",
        """
import fcntl
fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK | os.O_NOATIME if hasattr(os, "O_NOATIME") else os.O_APPEND)
if not fcntl.fcntl(0, fcntl.F_GETFL) & os.O_APPEND:
    say(void="F_SETFL", why="did nothing")
raise ValueError("now it fails")
""",
        """
import fcntl
if fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK):
    say(got="a failed run's flags")
""",
        statuses=ends(Status.ERROR),
    ),
    Attack(
        "iso.numa_and_cpu",
        "pin to a core, so that a neighbour can feel it",
        """
attempt("affinity", lambda: os.sched_setaffinity(0, {0}))
attempt("migrate", lambda: syscall(256, 0, 8, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)))
attempt("mbind policy", lambda: syscall(238, 2, ctypes.create_string_buffer(b"\\1" * 8), 8))
""",
        bites=True,
    ),
)
