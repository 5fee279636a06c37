"""SIGTERM ends a command with 143, whatever a library makes of the exception in its middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = """
import contextlib, os, signal, time

from vtcli.cli import main


def command():
    {body}


main.app = command
main.main()
"""
BODIES = {
    "passes it on": "os.kill(os.getpid(), signal.SIGTERM)",
    "loses it": "with contextlib.suppress(BaseException): os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(120)",
    "raises another": "try: os.kill(os.getpid(), signal.SIGTERM)\n    finally: None.flags",
}


@pytest.mark.parametrize("library", BODIES)
def test_a_command_ends_whatever_a_library_makes_of_the_exception(library: str) -> None:
    code = COMMAND.format(body=BODIES[library])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 143, done.stderr
    assert "terminated" in done.stderr
    assert library != "raises another" or "AttributeError: 'NoneType'" in done.stderr  # said, as it may be a defect
    assert "Traceback" not in done.stderr
