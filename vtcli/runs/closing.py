"""The last line of every command: the next command to type."""

from __future__ import annotations

import os
import shlex

from vtcli.foreign import print_line

STEP = "VTCLI_STEP"
"""Set in the environment of a command that another command runs, because only the outer one prints its next."""


def say_next(*words: object, program: str = "vtcli") -> None:
    """Prints ``vtcli WORDS`` on standard error, because standard output carries only results. Silent in a step of
    another command and in all ranks but the first."""
    if os.environ.get("RANK", "0") == "0" and STEP not in os.environ:
        print_line(f"vtcli: next: {shlex.join(map(str, (program, *words)))}")
