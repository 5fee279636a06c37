"""A running pool per tier, shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandbox_world import TEST_TIERS, World

from vtcli.sandbox.host.pool import PoolConfig


@pytest.fixture(scope="module", params=TEST_TIERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A pool at each tier."""
    made = World(PoolConfig(active=2, live=64, tier=request.param, outer_boundary=True, minimum_tier="none"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def strongest() -> Iterator[World]:
    """A pool as users get it."""
    made = World(PoolConfig(active=2, live=64))
    yield made
    made.close()
