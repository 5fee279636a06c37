"""Family ``poison``: hooks at the harness's own forks, and the harness's reading of its orders."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from .poison import ruin

CASES = (
    ruin(
        "fork_hooks",
        "hooks at fork that exit, sleep or raise",
        """
os.register_at_fork(before=lambda: os._exit(9), after_in_child=lambda: os._exit(8), after_in_parent=lambda: time.sleep(100))
""",
    ),
    ruin(
        "fork_hooks_hang",
        "hooks at fork that compute without end, where no run's clock is ticking",
        """
def burn():
    while True:
        pass
os.register_at_fork(before=burn)
""",
    ),
    ruin(
        "fork_hooks_in_child",
        "hooks at fork that speak for the copy and go on computing in it",
        """
def speak():
    for fd in range(3, 4096):
        try:
            os.write(fd, b'{"copy":true,"blobs":[]}\\n')
        except OSError:
            pass
    while True:
        pass
os.register_at_fork(after_in_child=speak)
""",
    ),
    ruin(
        "deaf_worker",
        "the harness's own reading of its channel replaced by what waits for ever",
        """
frames = sys.modules["vtcli.sandbox.protocol.frames"]
frames.receive = lambda *a, **k: time.sleep(1000)
""",
    ),
    ruin(
        "fork_hooks_c",
        "the same by pthread_atfork, in C",
        """
hook = ctypes.CFUNCTYPE(None)(lambda: os._exit(8))
_LIBC.__register_atfork(None, None, hook, None) if hasattr(_LIBC, "__register_atfork") else _LIBC.pthread_atfork(None, None, hook)
""",
    ),
)
