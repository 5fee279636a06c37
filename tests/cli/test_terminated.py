"""SIGTERM ends a command with 143 and Ctrl-C with 130, whatever a library makes of the exception in its middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = """
import contextlib, os, signal, time

signal.signal(signal.SIGINT, signal.{at_first})  # a suite in the background ignores Ctrl-C

from vtcli.cli import main


def command():
    {body}


main.app = command
main.main()
"""
BODIES = {
    "passes it on": "os.kill(os.getpid(), signal.{number})",
    "loses it": "with contextlib.suppress(BaseException): os.kill(os.getpid(), signal.{number})\n    time.sleep(120)",
    "raises another": "try: os.kill(os.getpid(), signal.{number})\n    finally: None.flags",
}


SIGNALS = {"SIGTERM": (143, "terminated"), "SIGINT": (130, "interrupted")}


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("library", BODIES)
def test_a_command_ends_whatever_a_library_makes_of_the_exception(library: str, number: str) -> None:
    code, word = SIGNALS[number]
    command = COMMAND.format(body=BODIES[library].format(number=number), at_first="default_int_handler")
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == code, done.stderr
    assert word in done.stderr
    assert library != "raises another" or "AttributeError: 'NoneType'" in done.stderr  # said, as it may be a defect
    assert "Traceback" not in done.stderr


def test_ctrl_c_stays_ignored_where_it_was(tmp_path: Path) -> None:
    """As by nohup."""
    body = f"os.kill(os.getpid(), signal.SIGINT)\n    open({str(tmp_path / 'done')!r}, 'w').close()"
    ignored = COMMAND.format(body=body, at_first="SIG_IGN")
    done = subprocess.run([sys.executable, "-c", ignored], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "done").exists()
