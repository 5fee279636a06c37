"""Random code for some seconds (``VTCLI_FUZZ_S``: for longer), beside an episode that must not notice."""

from __future__ import annotations

import asyncio
import os

import pytest

from vtcli.sandbox.confinement.kernel import SUPPORTED
from vtcli.sandbox.host.pool import Pool, PoolConfig

from .random_code import FuzzReport, fuzz, program
from .scene import Scene

SECONDS = float(os.environ.get("VTCLI_FUZZ_S", "20"))


def test_a_program_is_a_function_of_its_seed() -> None:
    assert program(7, {}) == program(7, {})
    assert len({program(seed, {}) for seed in range(50)}) == 50


@pytest.mark.wide
@pytest.mark.skipif(not SUPPORTED, reason="confinement is written for Linux on x86-64")
def test_random_code_harms_nobody() -> None:
    async def run() -> FuzzReport:
        async with await Pool.start(PoolConfig(active=2)) as pool:
            return await fuzz(pool, scene, SECONDS)

    scene = Scene()
    try:
        found = asyncio.run(run())
    finally:
        scene.close()
    assert not found.wrong, found.wrong
    assert found.runs >= 5
    assert found.beside >= 5
    assert len(found.statuses) >= 2, "programs that all end alike try little"
