"""A command of vtcli as a child process. It ends with the process that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence


def run(argv: Sequence[str]) -> tuple[int, str]:
    """Runs ``vtcli ARGV`` to its end. Returns its exit code and the reference of the artifact that it printed.

    Ctrl-C and SIGTERM are passed on; the child gets each once, as it has a session of its own. ``MLFLOW_RUN_ID`` is
    not: several children would write into one run.
    """
    command = [sys.executable, "-m", "vtcli.cli.child", *argv]
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
