"""Hypothesis on machines that are slow and shared: neither an example nor its making has a limit of time. A browser."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium  # noqa: F401  a fixture
from hypothesis import HealthCheck, settings
from sandbox_world import World

from vtcli.sandbox.host.pool import PoolConfig

settings.register_profile(
    "shared", settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")

# Python looks for garbage after every 700 new objects by default. That was a quarter of the CPU time of collecting the
# tests, and a tenth of running them, because a process that has imported torch and transformers has much to look at.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def strongest() -> Iterator[World]:
    """A pool as users get it, for every test that does not end it: its template's imports cost 4 s of CPU time."""
    made = World(PoolConfig(active=2, live=64))
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="module")
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forgets, after a file of tests, the modules that it wrote and imported: another file may use their names."""
    yield
    written = f"{tmp_path_factory.getbasetemp()}/"
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As ``--dist loadfile``, and all files that need the fork server go to one process, where it starts once: its
    imports cost 8 s of CPU time."""
    from xdist.scheduler import LoadFileScheduling

    files = Path(__file__).parent.rglob("test_*.py")
    forked = {str(path.relative_to(config.rootpath)) for path in files if "\nimport forked\n" in path.read_text()}

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = super()._split_scope(nodeid)
            return "forked" if scope in forked else scope

    return Scheduling(config, log)
