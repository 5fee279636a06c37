"""A command of vtcli as a child process. It ends with the process that started it, however that one ends.

Run as a module, this file is the child: ``vtcli``, tied to its parent by its standard input.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence


def run(argv: Sequence[str], launcher: Sequence[str] = ()) -> tuple[int, str]:
    """Runs ``vtcli ARGV`` to its end, in the ranks of ``launcher`` (``-m torch.distributed.run …``) if one is given.
    Returns its exit code and the reference of the artifact that it printed.

    Ctrl-C and SIGTERM are passed on; the child gets each once, as it has a session of its own. ``MLFLOW_RUN_ID`` is
    not: several children would write into one run.
    """
    command = [sys.executable, *launcher, "-m", "vtcli.cli.steps", *argv]
    pipe = subprocess.PIPE
    env = {name: value for name, value in os.environ.items() if name != "MLFLOW_RUN_ID"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True, env=env) as child:
        try:
            assert child.stdout is not None
            printed = child.stdout.read().splitlines()
            code = child.wait()
        except BaseException as end:
            child.send_signal(signal.SIGINT if isinstance(end, KeyboardInterrupt) else signal.SIGTERM)
            child.wait()
            raise
    return code if code >= 0 else 128 - code, printed[-1].partition("\t")[0] if printed else ""


def _end_with_parent() -> None:
    """Waits for the end of standard input, whose other end only the parent has, and ends this process as kill -9 does.
    Work is resumable after that, and the next attempt does not find its lock held."""
    while os.read(0, 1):  # unbuffered: a buffer's lock, held at the interpreter's end, would be a fatal error
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from vtcli.cli.main import main

    threading.Thread(target=_end_with_parent, daemon=True).start()
    main()
