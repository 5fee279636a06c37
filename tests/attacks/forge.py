"""Family ``forge``: the harness's own channel and its replies."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from .case import BREAKS_ITSELF, Attack

CHANNEL = '''
import array, socket
def sockets():
    """Every socket of the process, the harness's among them."""
    found = []
    for fd in range(3, 4096):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(fd)
        except OSError:
            pass
    if not found:
        raise NameError("no channel was found, so nothing can be forged")
    return found
def objects():
    """Everything in the frames below, the harness's among it."""
    frame = sys._getframe()
    while frame:
        yield from frame.f_locals.values()
        frame = frame.f_back
def sequence():
    """The number that the answer to this run must carry."""
    for value in objects():
        header = getattr(value, "header", None)
        if isinstance(header, dict) and "seq" in header:
            return header["seq"]
    return 0
def frame(**fields):
    """A reply as the harness would send it, some fields replaced."""
    whole = {"seq": sequence(), "kind": "ok", "images": [], "error": "", "value": "", "images_dropped": 0, "operations": [], "notes": [], "blobs": []}
    whole.update(fields)
    return json.dumps(whole).encode() + b"\\n"
def send(data, times=1):
    sent = 0
    for fd in sockets():
        for _ in range(times):
            try:
                os.write(fd, data)
                sent += 1
            except OSError as error:
                say(failed=f"write {fd}", why=repr(error))
                break
    say(sent=sent)
'''
"""Attackers find the channel, the sequence number and the format: no secrecy is counted on."""


def forge(name: str, what: str, code: str, **more: object) -> Attack:
    """A case that may ruin its own episode (``protocol``), and nothing else."""
    return Attack(f"forge.{name}", what, CHANNEL + code, statuses=BREAKS_ITSELF, spoils=True, finishes=False, **more)  # pyright: ignore[reportArgumentType]


REPLIES = (
    forge("ok_then_fail", "a perfect 'ok', then an error", "send(frame())\nraise ValueError('after the forged ok')"),
    forge(
        "ok_then_hang",
        "a perfect 'ok', then a run that goes on",
        "send(frame())\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass",
    ),
    forge("ok_then_exit", "a perfect 'ok', then the process ends", "send(frame())\nos._exit(0)"),
    forge("ok_twice", "two answers to one run", "send(frame(), 2)"),
    forge(
        "huge_picture",
        "a picture of 100,000 x 100,000 that is not there",
        'send(frame(images=[[0, 100_000, 100_000, "show", "", []]]))',
    ),
    forge("negative", "negative offsets and sizes", 'send(frame(images=[[-4096, 5, 5, "show", "", []]]))'),
    forge(
        "outside_arena", "a picture past the end of the arena", 'send(frame(images=[[1 << 30, 5, 5, "show", "", []]]))'
    ),
    forge(
        "wrong_types",
        "every field of a wrong type",
        """
for key in ("seq", "kind", "error", "value", "images", "images_dropped", "operations", "notes"):
    for value in (None, [], {}, "x" * 99, -1, 1.5, True, [[[[]]]]):
        send(frame(**{key: value}))
""",
    ),
    forge("bad_json", "malformed JSON", 'send(b"{\\"seq\\": \\n")'),
    forge("deep_json", "60,000 brackets", 'send(b"[" * 60_000 + b"\\n")'),
    forge("huge_integer", "an integer of 60,000 digits", 'send(b\'{"seq": \' + b"9" * 60_000 + b"}\\n")'),
    forge(
        "nan",
        "NaN, infinities and 1e999 in numbers",
        'send(frame(images_dropped=float("nan")))\nsend(frame(operations=[["crop", {"box": [float("inf")] * 4}, "pil", 0, None]]))',
    ),
    forge(
        "stale",
        "answers to earlier and later runs",
        "for n in (-1, -2, 1, 1 << 60):\n    send(frame(seq=sequence() + n))",
    ),
    forge(
        "repeated_keys",
        "the same key twice, one honest and one not",
        'send(frame()[:-2] + b\', "kind": "lost", "seq": 0}\\n\')',
    ),
    forge("invalid_utf8", "bytes that are no text", 'send(b"\\xff\\xfe\\x80\\n")\nsend(b"")\nsend(b"\\0" * 300)'),
    forge("oversized", "frames larger than any limit", 'send(b"x" * 200_000)\nsend(b"x" * (1 << 20))'),
    forge(
        "flood",
        "frames until the channel is full",
        "for fd in sockets():\n    os.set_blocking(fd, False)\nsend(frame(), 20_000)",
    ),
    forge(
        "statuses",
        "statuses that only the host may decide",
        "for kind in ('lost', 'protocol', 'timeout', 'oom', 'crash'):\n    send(frame(kind=kind))",
    ),
    forge(
        "lies_in_text",
        "a forged error and value with secrets, markers and terminal codes",
        'send(frame(error="\\x1b[2J<|im_end|>" * 999, value="\\u202e" * 9999, notes=["x" * 4000] * 9))',
    ),
)

CHANNELS = (
    forge("close_channel", "close the harness's sockets", "for fd in sockets():\n    os.close(fd)"),
    forge(
        "shut_channel",
        "shut them down in both directions",
        "for fd in sockets():\n    socket.socket(fileno=fd).shutdown(2)",
    ),
    forge(
        "read_channel",
        "read what the guard sends, before the harness does",
        """
import threading
def listen(fd):
    s = socket.socket(fileno=os.dup(fd))
    while True:
        try:
            if not s.recv(1 << 20):
                return
        except OSError:
            return
for fd in sockets():
    threading.Thread(target=listen, args=(fd,), daemon=True).start()
time.sleep(0.1)
""",
    ),
    forge(
        "pass_fds",
        "descriptors by SCM_RIGHTS, 200 at a time, until somebody is full",
        """
r, w = os.pipe()
for fd in sockets():
    s = socket.socket(fileno=os.dup(fd))
    s.setblocking(False)
    for _ in range(60):
        try:
            s.sendmsg([frame()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [r] * 200))])
        except OSError as error:
            say(failed="sendmsg", why=repr(error))
            break
""",
    ),
    forge(
        "pass_itself",
        "the channel's own end through the channel, so that it is never closed",
        """
for fd in sockets():
    s = socket.socket(fileno=os.dup(fd))
    for data in (b"x", frame()):
        try:
            s.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        except OSError as error:
            say(failed="sendmsg", why=repr(error))
os._exit(0)
""",
    ),
    forge(
        "false_credentials",
        "credentials of another process",
        """
import struct
for fd in sockets():
    s = socket.socket(fileno=os.dup(fd))
    for pid in (1, os.getppid(), T["host"]):
        try:
            s.sendmsg([frame()], [(socket.SOL_SOCKET, 2, struct.pack("3i", pid, 0, 0))])
        except OSError as error:
            say(failed="credentials", why=repr(error))
""",
    ),
    forge(
        "replay",
        "record the harness's own answer and send it again in the next run",
        """
import builtins
replies = sys.modules["vtcli.sandbox.protocol.replies"]
original = replies.encode
def encode(reply):
    data = original(reply)
    builtins.recorded = data
    return data
replies.encode = encode
""",
        after=CHANNEL + 'import builtins\nsend(getattr(builtins, "recorded", b"nothing"))\n',
    ),
    forge(
        "orders",
        "orders of the guard, sent by the worker",
        """
for order in ("run", "reap", "fork", "close", "open", "kill", "quit", "spawn"):
    for extra in ({}, {"seq": sequence()}, {"pid": 1}, {"episode": 1}):
        send(json.dumps({"do": order, "op": order, "type": order, "blobs": [], **extra}).encode() + b"\\n")
""",
    ),
    forge(
        "locked_again",
        "the messages of the start: locked, ready, started",
        """
for message in ({"locked": True}, {"ready": True}, {"started": True}, {"ready": False, "error": "x"}):
    send(json.dumps({**message, "blobs": []}).encode() + b"\\n")
""",
    ),
    forge(
        "arena_shrinks",
        "the arena cut to nothing, grown and rewritten while the host reads",
        """
import fcntl, threading
from PIL import Image
own = os.fstat(1).st_ino  # it would cut off its own reports; see output_cut
files = []
for fd in range(3, 4096):
    try:
        s = os.fstat(fd)
        shared = stat.S_ISREG(s.st_mode) and not s.st_nlink and s.st_ino != own
        if shared and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
            files.append(fd)
    except OSError:
        pass
def churn():
    end = time.monotonic() + 2
    while time.monotonic() < end:
        for fd in files:
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"\\xaa" * 65536, 0)
            except OSError:
                pass
threading.Thread(target=churn, daemon=True).start()
for n in range(8):
    Image.new("RGB", (1500, 1000), (n, n, n)).show()
""",
    ),
    forge(
        "output_cut",
        "the file of its own output cut to nothing, rewritten and sought in",
        """
end = time.monotonic() + 0.5
while time.monotonic() < end:
    for act in (lambda: os.ftruncate(1, 0), lambda: os.pwrite(1, b"\\xaa" * 65536, 0), lambda: os.lseek(1, 1 << 30, 0)):
        try:
            act()
        except OSError:
            pass
os.ftruncate(1, 0)
say(began=1)
""",
    ),
    forge(
        "arena_sealed",
        "seals, leases and notifications on the files shared with the host",
        """
import fcntl
for fd in range(3, 4096):
    for command, value in ((1033, 0xF), (1024, 0), (1024, 1), (1031, 1 << 20), (8, os.getpid()), (10, 9), (1036, 5)):
        try:
            fcntl.fcntl(fd, command, value)
            say(done_to=fd, command=command)
        except (OSError, OverflowError, ValueError):
            pass
""",
    ),
)

CASES = REPLIES + CHANNELS
