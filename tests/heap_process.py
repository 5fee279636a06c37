"""Programs in a process that begins as the sandbox's template does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vtcli.sandbox.processes import heap, template


def ran(program: str) -> str:
    """What the program prints. Skips where neither heap nor pages can be arranged."""
    if not heap.KNOWN:
        pytest.skip("another C library or processor")
    environment = template.ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
