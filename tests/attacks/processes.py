"""Family ``proc``: processes, threads and signals; each bomb is bounded, so that a broken sandbox costs little."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from vtcli.sandbox.types import Status

from .case import BREAKS_ITSELF, DIES, Attack, ends

MAYBE_DIES = DIES | ends(Status.OK)

CASES = (
    Attack(
        "proc.descriptors_under_way",
        "descriptors sent to a pair of sockets and left there: the kernel counts them for each user",
        """
import array, socket
def flood():
    ends, sent = [], 0
    for _ in range(20):
        ends.append(socket.socketpair())
        sent += ends[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1] * 250))])
    return sent
pair = socket.socketpair()
attempt("send_fds", lambda: socket.send_fds(pair[0], [b"x"], [1]))
attempt("sendmsg", flood)
attempt("sendmmsg", lambda: syscall(307, 1, 0, 0, 0))
attempt("a filter of its own", lambda: syscall(317, 1, 0, 0))
""",
        bites=True,
    ),
    Attack(
        "proc.fork",
        "fork by every call there is, one by one",
        """
def check(pid):
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid
attempt("os.fork", lambda: check(os.fork()))
attempt("forkpty", lambda: check(os.forkpty()[0]))
attempt("fork", lambda: check(syscall(57)))
attempt("clone", lambda: check(syscall(56, 17, 0, 0, 0, 0)))
attempt("clone without signal", lambda: check(syscall(56, 0, 0, 0, 0, 0)))
attempt("clone parent", lambda: check(syscall(56, 0x8000 | 17, 0, 0, 0, 0)))
import struct
attempt("clone3", lambda: check(syscall(435, ctypes.create_string_buffer(struct.pack("QQQQQQQQ", 0, 0, 0, 0, 17, 0, 0, 0)), 64)))
""",
        bites=True,
        spoils=True,
    ),
    Attack(
        "proc.fork_bomb",
        "forks as fast as it can, from four threads, 200 at most",
        """
import threading
made = []
def bomb():
    for _ in range(50):
        try:
            pid = os.fork()
        except OSError:
            continue
        if pid == 0:
            time.sleep(0.5)
            os._exit(0)
        made.append(pid)
threads = [threading.Thread(target=bomb) for _ in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
if made:
    say(got="processes", value=len(made))
""",
        bites=True,
    ),
    Attack(
        "proc.fork_race",
        "fork in a thread at the moment when the harness makes its own fork of the next run",
        """
import threading
def race():
    while True:
        try:
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            say(got="a process")
        except OSError:
            time.sleep(0.001)
threading.Thread(target=race, daemon=True).start()
""",
        after="time.sleep(0.2)\n",
        spoils=True,
    ),
    Attack(
        "proc.thread_bomb",
        "3,000 threads",
        """
import threading
made = 0
event = threading.Event()
try:
    for made in range(3000):
        threading.Thread(target=event.wait, daemon=True).start()
except RuntimeError as error:
    say(failed="thread", why=repr(error))
event.set()
if made > 1000:
    say(got="threads", value=made)
""",
        statuses=ends(Status.OK, Status.LIMIT, Status.ERROR),
        spoils=True,
    ),
    Attack(
        "proc.vfork",
        "300 children by vfork's flag",
        """
made = 0
for _ in range(300):
    try:
        # CLONE_VFORK
        pid = syscall(56, 0x4000 | 17, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        made += 1
    except OSError:
        pass
if made:
    say(got="vfork", value=made)
""",
        statuses=MAYBE_DIES,
        bites=True,
    ),
    Attack(
        "proc.daemon",
        "a double fork with its own session, to survive the run",
        """
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(20)
        os._exit(0)
    return True
attempt("daemon", daemon)
""",
        bites=True,
    ),
    Attack(
        "proc.subprocess",
        "subprocess, os.system, popen, spawn, posix_spawn, pty",
        """
import pty, subprocess
attempt("run", lambda: subprocess.run(["true"], timeout=3))
attempt("close_fds", lambda: subprocess.run([sys.executable, "-c", ""], close_fds=False, timeout=9))
def shell():
    code = os.system("exit 7")
    if code != 7 << 8:
        raise OSError(code)
attempt("system", shell)
attempt("popen", lambda: os.popen("echo hi").read() or os.stat("/nowhere"))
attempt("posix_spawn", lambda: os.posix_spawn("/bin/true", ["true"], {}))
def spawn():
    code = os.spawnv(os.P_WAIT, "/bin/true", ["true"])
    if code:
        raise OSError(code)
attempt("spawn", spawn)
""",
        bites=True,
    ),
    Attack(
        "proc.exec",
        "become another program",
        """
import shutil
for path in ("/bin/true", "/usr/bin/true", sys.executable, "/proc/self/exe", "/lib64/ld-linux-x86-64.so.2"):
    attempt("execv " + path, lambda: os.execv(path, [path, "-c", ""]))
attempt("execveat", lambda: syscall(322, -100, b"/bin/true", 0, 0, 0))
def by_fd():
    os.execve(os.open(sys.executable, os.O_RDONLY), ["x", "-c", ""], {})
attempt("fexecve", by_fd)
attempt("uselib", lambda: syscall(134, b"/bin/true"))
""",
    ),
    Attack(
        "proc.exec_succeeds",
        "become a program that prints, which is how execve would show",
        """
os.execv("/bin/echo", ["echo", '@@{"got": "another program"}'])
""",
        statuses=ends(Status.ERROR),
        bites=True,
    ),
    Attack(
        "proc.multiprocessing",
        "multiprocessing by fork, spawn and forkserver, and process pools",
        """
import multiprocessing, concurrent.futures
def work():
    return 1
for method in ("fork", "spawn", "forkserver"):
    def start():
        p = multiprocessing.get_context(method).Process(target=time.sleep, args=(0,))
        p.start()
        p.join(3)
        return p.pid
    attempt(method, start)
attempt("pool", lambda: concurrent.futures.ProcessPoolExecutor(1).submit(abs, 1).result(3))
""",
        statuses=ends(Status.OK, Status.TIMEOUT),
        wall_limit_s=15.0,
    ),
    Attack(
        "proc.kill_others",
        "signals to the host, its child, the parent, the first process; 0 first, so that a broken sandbox costs little",
        """
for name, pid in (("victim", T["victim"]), ("host", T["host"]), ("first", 1)):
    for number in (0, 23) if name != "victim" else (0, 9):
        attempt(f"kill {name} {number}", lambda: os.kill(pid, number)) if name != "first" or os.getpid() != 1 else None
    attempt(f"tgkill {name}", lambda: syscall(234, pid, pid, 0))
    attempt(f"tkill {name}", lambda: syscall(200, pid, 0))
    attempt(f"sigqueue {name}", lambda: syscall(129, pid, 0, ctypes.create_string_buffer(128)))
    attempt(f"pidfd signal {name}", lambda: syscall(424, syscall(434, pid, 0), 0, 0, 0))
""",
    ),
    Attack(
        "proc.see_others",
        "signal 0 to all numbers: which processes are there?",
        """
mine = {os.getpid(), os.getppid()}
found = []
for pid in [*range(1, 3000), T["host"], T["victim"]]:
    try:
        os.kill(pid, 0)
        found.append(pid)
    except PermissionError as error:
        pass
    except OSError:
        pass
found = [p for p in found if p not in mine]
if found:
    say(got="processes", value=found[:9])
attempt("rlimits", lambda: syscall(302, T["victim"], 7, 0, ctypes.create_string_buffer(16)))
attempt("wait", lambda: os.waitpid(-1, os.WNOHANG)[0] or os.stat("/nowhere/"))
""",
        bites=True,
    ),
    Attack(
        "proc.ask_about_others",
        "facts about the host's process: group, session, cores, priority, scheduler, CPU time, locks",
        """
for name, act in (("pgid", os.getpgid), ("sid", os.getsid), ("cores", os.sched_getaffinity), ("scheduler", os.sched_getscheduler),
                  ("priority", lambda pid: os.getpriority(os.PRIO_PROCESS, pid)), ("policy", os.sched_getparam),
                  ("group priority", lambda pid: os.getpriority(os.PRIO_PGRP, pid)),
                  ("CPU time", lambda pid: time.clock_gettime(~pid << 3 | 2)),
                  ("CPU clock", lambda pid: time.clock_getres(~pid << 3 | 2)),
                  ("locks", lambda pid: syscall(274, pid, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)))):
    attempt(name, lambda: act(T["victim"]))
""",
        bites=True,
    ),
    Attack(
        "proc.kill_all",
        "SIGTERM and SIGKILL to everybody, only after signal 0 to the host's process was refused",
        """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    os.kill(T["victim"], 0)
    say(got="a signal to the host's process")
except OSError:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(-1, number)
        except OSError as error:
            say(failed=f"kill all {number}", why=repr(error))
""",
        statuses=BREAKS_ITSELF,
        spoils=True,
    ),
    Attack(
        "proc.kill_group",
        "SIGKILL to the own process group and session",
        """
os.killpg(0, 9)
""",
        statuses=DIES | ends(Status.ERROR),
    ),
    Attack(
        "proc.kill_snapshot",
        "SIGKILL and SIGSTOP to the parent, which holds the state to return to",
        """
for number in (19, 9):
    attempt(f"kill {number}", lambda: os.kill(os.getppid(), number))
""",
        spoils=False,
    ),
    Attack(
        "proc.secret_in_environment",
        "secrets of the host in os.environ and in the C environment",
        """
leaks(repr(dict(os.environ)))
if T["secret_name"] in os.environ:
    say(got="the host's variable")
_LIBC.getenv.restype = ctypes.c_char_p
if _LIBC.getenv(T["secret_name"].encode()):
    say(got="the host's variable by getenv")
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(_LIBC, "environ")
n = 0
while environ and environ[n]:
    leaks(environ[n])
    n += 1
for name in os.environ:
    if re.search("TOKEN|KEY|SECRET|PASS|AWS|HF_|WANDB|MLFLOW|PROXY|SSH", name, re.I):
        say(got="variable " + name)
""",
    ),
    Attack(
        "proc.secret_in_memory",
        "secrets of the host anywhere in the own memory, the first stack included",
        """
seen = 0
try:
    maps = open("/proc/self/maps").read().splitlines()
except OSError:
    maps = []
for line in maps:
    span, rights, *rest = line.split()
    if not rights.startswith("r") or line.endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
        continue
    low, high = (int(x, 16) for x in span.split("-"))
    if high - low > 1 << 27 or (".so" in line and "r-" in rights):
        continue
    for start in range(low, high, 1 << 22):
        try:
            data = ctypes.string_at(start, min(1 << 22, high - start))
        except Exception:
            break
        seen += len(data)
        leaks(data)
say(scanned=seen)
""",
        statuses=MAYBE_DIES | ends(Status.OOM, Status.ERROR),
        finishes=False,
    ),
    Attack(
        "proc.secret_on_stack",
        "the first stack read upwards from the environment's place, in steps, until it ends",
        """
end = ctypes.c_void_p.in_dll(ctypes.CDLL("ld-linux-x86-64.so.2"), "__libc_stack_end").value
for offset in range(0, 1 << 16, 256):
    leaks(ctypes.string_at(end + offset, 512))
""",
        statuses=DIES | ends(Status.OK, Status.ERROR),
        finishes=False,
    ),
)
