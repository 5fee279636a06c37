"""Processes that take seconds to become warm, shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness_process import Player, player
from sandbox_world import World

from vtcli.sandbox.host.pool import PoolConfig

# The weaker tiers are of the release suite. What differs there at all, the attacks and the tests of confinement show.
TIERS = ("full", *(pytest.param(tier, marks=pytest.mark.wide) for tier in ("landlock", "none")))


@pytest.fixture(scope="session", params=TIERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A pool at each tier; the one of all tests where that is its tier, because each template costs 4 s of CPU time."""
    if request.param == "full":
        shared: World = request.getfixturevalue("strongest")
        if shared.pool.report["tier"] == "full":
            yield shared
            return
    made = World(PoolConfig(active=2, live=64, tier=request.param, outer_boundary=True, minimum_tier="none"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def play() -> Iterator[Player]:
    """A harness in a process of its own."""
    with player() as found:
        yield found
