"""``vtcli`` as a child process, tied to its parent by its standard input: run as ``python -m vtcli.cli.child``."""

from __future__ import annotations

import os
import signal
import threading


def _end_with_parent() -> None:
    """Waits for the end of standard input, whose other end only the parent has, and then kills this process, because it
    may be anywhere. Its work is resumable, and the next attempt finds its lock free."""
    while os.read(0, 1):  # unbuffered: a buffer's lock, held at the interpreter's end, would be a fatal error
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from vtcli.cli.main import main

    threading.Thread(target=_end_with_parent, daemon=True).start()
    main()
