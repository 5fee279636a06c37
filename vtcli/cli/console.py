"""Messages of the commands to a person, on standard error, because standard output carries only results."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout

from vtcli.foreign import print_line


def say(message: str) -> None:
    print_line(f"vtcli: {message}")


@contextmanager
def results_only() -> Generator[None]:
    """Redirects standard output to standard error for the block: logs and prints of libraries, and output of programs
    that it starts, so that ``$(vtcli rl …)`` is one line."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):  # loggers that are made now keep this stream
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
