"""Stages run in the process of the tests, one after another. State that ends with a command's process is put back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import world


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the module's own that begins with the artifacts of the world."""
    return world.linked(tmp_path_factory.mktemp("world") / "artifacts")


@pytest.fixture(autouse=True)
def _same_process() -> Iterator[None]:
    """Puts the environment back, where DeepSpeed and MLflow set variables, and fails a test after which signals would
    end this process in another way or relative paths would mean other files."""
    environ, folder = dict(os.environ), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    os.environ.clear()
    os.environ.update(environ)
    changed = [number.name for number, handler in handlers.items() if signal.getsignal(number) is not handler]
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert not changed and Path.cwd() == folder, f"left behind: handlers of {changed}, folder {Path.cwd()}"
