"""Family ``poison``: the interpreter turned against the harness in it, now and in the next run of the episode.

The harness shares its interpreter with the code, so an episode can ruin itself; it must not ruin more than that, and
a run that fails must leave nothing behind.
"""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from vtcli.sandbox.types import Status

from .case import BREAKS_ITSELF, Attack, ends
from .files import READ

FAILED = ends(Status.ERROR)


def ruin(name: str, what: str, code: str, after: str = "") -> Attack:
    """May ruin its own episode, however it ends."""
    return Attack(f"poison.{name}", what, code, after, statuses=BREAKS_ITSELF, spoils=True, finishes=False)


def undone(name: str, what: str, code: str, after: str) -> Attack:
    """Poisons, then fails: the next run must find nothing of it."""
    return Attack(f"poison.{name}", what, code + '\nraise ValueError("now it fails")\n', after, statuses=FAILED)


CASES = (
    Attack(
        "poison.subclasses",
        "from () by __subclasses__ to os and a shell",
        """
for c in ().__class__.__base__.__subclasses__():
    if c.__name__ == "_wrap_close":
        def shell():
            if c.__init__.__globals__["system"]("exit 7") != 7 << 8:
                raise OSError("no shell")
        attempt("shell", shell)
        break
""",
        bites=True,
    ),
    Attack(
        "poison.string_tricks",
        "imports and names that a reader of the source does not see",
        """
import base64, codecs
hidden = getattr(__builtins__, "__imp" + "ort__", None) or __builtins__["__imp" + "ort__"]
o = hidden(base64.b64decode("b3M=").decode())
attempt("by name", lambda: getattr(o, "po" + "pen")("echo hi").read() or o.stat("/nowhere/"))
attempt("nfkc", lambda: eval("o.ｓｙｓｔｅｍ('exit 7') == 7 << 8 or o.stat('/nowhere/')"))
attempt("exec", lambda: exec(codecs.decode("bcra(G['frperg']).ernq()", "rot13")))
attempt("pickle", lambda: __import__("pickle").loads(b"cbuiltins\\nopen\\n(V/etc/passwd\\ntR.").read())
attempt("ctypes", lambda: os.read(_LIBC.open(b"/etc/passwd", 0), 9))
""",
        gaps=READ,
        bites=True,
    ),
    Attack(
        "poison.harness_memory",
        "all objects, frames and modules searched for secrets of the host",
        """
import gc
seen = 0
for o in gc.get_objects():
    seen += 1
    try:
        if isinstance(o, dict):
            for v in list(o.values()):
                if isinstance(v, (str, bytes)):
                    leaks(v)
        elif isinstance(o, (list, tuple, set)):
            for v in list(o)[:1000]:
                if isinstance(v, (str, bytes)):
                    leaks(v)
    except Exception:
        pass
frame = sys._getframe()
while frame:
    for v in list(frame.f_locals.values()):
        try:
            leaks(repr(v)[:100_000])
        except Exception:
            pass
    frame = frame.f_back
""",
    ),
    ruin(
        "functions",
        "json, os, time, exec and compile replaced by what lies or exits",
        """
import builtins, socket
json.dumps = json.loads = lambda *a, **k: "{}"
time.monotonic = time.perf_counter = time.time = lambda: -1.0
os.fork = lambda: 0
os.waitpid = os.kill = os._exit = os.close = os.dup2 = lambda *a: 0
builtins.exec = builtins.compile = builtins.len = lambda *a, **k: 7
""",
    ),
    ruin(
        "harness",
        "every function of the harness's own modules replaced",
        """
import types
for name, module in list(sys.modules.items()):
    if name.startswith("vtcli"):
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                setattr(module, key, lambda *a, **k: None)
            if isinstance(value, type):
                for k in list(vars(value)):
                    if not k.startswith("__"):
                        try:
                            setattr(value, k, lambda *a, **kw: None)
                        except (TypeError, AttributeError):
                            pass
""",
    ),
    ruin(
        "modules",
        "sys.modules emptied, or filled with nonsense",
        """
for name in list(sys.modules):
    if name not in ("sys", "builtins", "json", "os"):
        sys.modules[name] = None
""",
    ),
    ruin(
        "builtins",
        "builtins deleted",
        """
import builtins
for name in ("print", "isinstance", "len", "getattr", "ValueError", "Exception", "BaseException", "__import__", "__build_class__", "open"):
    delattr(builtins, name)
""",
    ),
    ruin(
        "threads_in_harness",
        "an asynchronous exception in the main thread, again and again",
        """
import threading
main = threading.main_thread().ident
def shoot():
    while True:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(SystemExit))
        time.sleep(0.0005)
threading.Thread(target=shoot, daemon=True).start()
time.sleep(0.01)
""",
    ),
    ruin(
        "trace",
        "sys.settrace, setprofile and threading's left installed, raising",
        """
import threading
def evil(*a):
    raise SystemExit("traced")
threading.settrace(evil)
threading.setprofile(evil)
sys.settrace(evil)
sys.setprofile(evil)
""",
    ),
    ruin("audit", "an audit hook that exits, which cannot be removed", "sys.addaudithook(lambda *a: os._exit(3))"),
    ruin(
        "meta_path",
        "an import hook that exits, path hooks and importers gone",
        """
class Finder:
    def find_spec(self, *a): raise SystemExit(4)
sys.meta_path.insert(0, Finder())
sys.path[:] = ["."]
sys.path_hooks.clear()
sys.path_importer_cache.clear()
""",
    ),
    ruin(
        "shadow_modules",
        "files in the workspace named like modules of the harness",
        """
for name in ("json", "os", "numpy", "PIL", "matplotlib", "traceback", "vtcli", "encodings", "codecs", "sitecustomize", "ast"):
    open(name + ".py", "w").write("raise SystemExit('shadowed')")
sys.path.insert(0, "")
sys.path.insert(0, os.getcwd())
""",
    ),
    ruin(
        "interpreter",
        "C structures of the interpreter overwritten",
        """
ctypes.memset(id(None), 0, 16)
""",
    ),
    ruin("integers", "the value of a small integer changed", "ctypes.c_long.from_address(id(7) + 24).value = 8"),
    ruin(
        "recursion",
        "the recursion limit at its least, the switch interval huge",
        """
import gc
sys.setswitchinterval(10_000)
gc.disable()
gc.set_threshold(0)
sys.setrecursionlimit(60)
""",
    ),
    ruin(
        "rlimits",
        "limits set to nothing by the code itself",
        """
import resource
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS):
    resource.setrlimit(kind, (0, resource.getrlimit(kind)[1]))
""",
    ),
    ruin(
        "rlimits_hard",
        "hard limits set to nothing, which cannot be undone",
        """
import resource
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_STACK, resource.RLIMIT_CPU):
    resource.setrlimit(kind, (1, 1))
""",
    ),
    ruin(
        "at_exit",
        "atexit, __del__, weakref and gc callbacks that sleep or exit",
        """
import atexit, gc, weakref
class Late:
    def __del__(self): time.sleep(100)
late = Late()
late.self = late
atexit.register(time.sleep, 100)
gc.callbacks.append(lambda *a: time.sleep(0.2))
weakref.finalize(late, time.sleep, 100)
""",
    ),
    ruin(
        "signal_handlers",
        "handlers of every signal that exit or raise, a timer that fires at once",
        """
import signal
def evil(*a): raise SystemExit("signal")
for number in range(1, 65):
    try:
        signal.signal(number, evil)
    except (OSError, ValueError):
        pass
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
""",
    ),
    ruin(
        "sigchld",
        "SIGCHLD ignored, so that nobody learns how a child ended",
        """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
""",
    ),
    ruin(
        "default_streams",
        "encodings, locale, warnings and the decimal context turned over",
        """
import locale, warnings, decimal, codecs
warnings.simplefilter("error")
decimal.getcontext().prec = 1
codecs.register(lambda name: os._exit(7))
codecs.register_error("backslashreplace", lambda e: os._exit(7))
codecs.register_error("surrogateescape", lambda e: os._exit(7))
""",
    ),
    ruin(
        "names",
        "the harness's and the episode's names overwritten, deleted, made endless",
        """
globals().clear()
""",
    ),
    ruin(
        "hostile_names",
        "a namespace full of objects that raise whatever one does",
        """
class Evil:
    def __getattribute__(self, name): raise SystemExit(name)
    __eq__ = __hash__ = __repr__ = __bool__ = __iter__ = __len__ = lambda self, *a: os._exit(2)
for n in range(50):
    globals()[f"evil{n}"] = Evil()
result = plt = Image = image = draw = Evil()
""",
    ),
    ruin(
        "libraries",
        "matplotlib's, PIL's and OpenCV's state turned over",
        """
import cv2, matplotlib, matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageFile
matplotlib.rcParams.update({"figure.dpi": 1e9, "savefig.dpi": 1e9})
plt.show = plt.close = plt.get_fignums = lambda *a, **k: os._exit(1)
Image.MAX_IMAGE_PIXELS = None
Image.init = Image.preinit = Image.open = lambda *a, **k: os._exit(1)
Image.registered_extensions().clear()
np.seterr(all="raise")
np.set_printoptions(threshold=sys.maxsize)
cv2.setNumThreads(64)
""",
    ),
    undone(
        "undone_modules",
        "sys.modules, builtins and libraries poisoned by a run that fails",
        """
import builtins, numpy, PIL.Image
builtins.len = lambda x: 0
numpy.asarray = None
PIL.Image.fromarray = None
sys.modules["json"] = None
os.chdir("/")
""",
        """
import builtins, numpy
if builtins.len("ab") != 2 or numpy.asarray is None or "x" in globals():
    say(got="a failed run's poison")
""",
    ),
    undone(
        "undone_names",
        "names, objects, generators and files changed by a run that fails",
        """
import builtins
kept_variable = 5
builtins.planted = 1
open("planted.txt", "w").write("x")
open("kept.txt", "w").write("changed")
image_clue_0 = None
""",
        """
import builtins
if hasattr(builtins, "planted") or os.path.exists("planted.txt") or kept_variable != 41:
    say(got="a failed run's state")
""",
    ),
    undone(
        "undone_signals",
        "handlers, timers, masks and hooks of a run that fails",
        """
import atexit, signal
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGALRM, lambda *a: os._exit(3))
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
sys.settrace(lambda *a: None)
sys.setrecursionlimit(500)
""",
        """
import signal
time.sleep(0.1)
if signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN or signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, []) or sys.gettrace():
    say(got="a failed run's signals")
""",
    ),
)
