"""Runs cases against a pool and judges each: the attack, the episode's next run, a bystander, a visitor, the host.

``python -m attacks.rounds TIER [NAME, FAMILY or PATTERN …]`` makes one round at a tier, or at the ``strongest`` one. It
prints a line of JSON for the sandbox, and one for each finding as it comes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

from sandbox_world import alive, descendants, descriptors

from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.types import Episode, Help, Picture, RunResult, Setup, Status, Tier

from . import judge, suite
from .case import Attack, AttackFinding, AttackVerdict, CaseRecord, Facts, over, preamble, program, reports
from .scene import Scene, picture

PATIENCE_S = 120.0
"""A call that has not come back by then is called stuck."""

GONE_S = 5.0
"""By then the processes of a closed episode must be gone."""

NO_HELP = Help(dedent=False, syntax=False, paths=False, clamp=False, check=False)


def base_setup() -> Setup:
    """The episode of every case, unless it says otherwise; the static check is off, being no protection."""
    return Setup(
        pictures=(Picture(picture()),),
        variables={"image_clue_0": 0},
        capture=("show", "pil_show", "files"),
        help=NO_HELP,
    )


@dataclass(slots=True)
class AttackRound:
    """One round over some cases. ``runner`` is open; ``scene`` was there before it."""

    runner: Pool
    scene: Scene
    tier: Tier

    async def run(self, cases: Sequence[Attack]) -> AsyncIterator[AttackFinding]:
        """Yields a finding per case, in order, and the last one on open files of this process."""
        bystander, cwd = await self._bystander()
        before = descriptors()
        quiet = len(_living())
        self.scene.harm()
        for case in cases:
            finding, usable = await self._one(case, bystander, self.scene.facts(cwd), quiet)
            yield finding
            if not usable:
                await bystander.close()
                bystander, cwd = await self._bystander()
                quiet = len(_living())
        left = descriptors() - before
        await bystander.close()
        verdict = AttackVerdict.BROKEN if left > 0 else AttackVerdict.HELD
        yield AttackFinding("host.descriptors", verdict, "", (f"{left:+d} open files",))

    async def _bystander(self) -> tuple[Episode, str]:
        """An episode that lives through all cases, and its workspace's path."""
        episode = await self.runner.open(base_setup())
        await episode.run(judge.FIRST)
        said = reports((await episode.run('import json, os\nprint("@@" + json.dumps({"cwd": os.getcwd()}))')).output)
        return episode, str(said[0]["cwd"]) if said else ""

    async def _one(self, case: Attack, bystander: Episode, facts: Facts, quiet: int) -> tuple[AttackFinding, bool]:
        """The finding on ``case``, and whether the bystander can be used again."""
        try:
            seen = await asyncio.wait_for(self._observe(case, bystander, facts, quiet), 2 * PATIENCE_S)
        except Exception as error:
            why = f"the runner raised {type(error).__name__}: {error}"
            return AttackFinding(case.name, AttackVerdict.BROKEN, "", (why[:400],)), False
        found = judge.judge(case, seen, self.tier, picture())
        return found, not any(line.startswith("bystander") for line in found.why)

    async def _observe(self, case: Attack, bystander: Episode, facts: Facts, quiet: int) -> CaseRecord:
        setup = base_setup()
        setup = case.setup(setup) if case.setup else setup
        episode = await self.runner.open(setup)
        first = await episode.run(judge.FIRST)
        start = time.monotonic()
        attack = asyncio.ensure_future(asyncio.wait_for(episode.run(program(case, facts)), PATIENCE_S))
        await asyncio.sleep(0.02)  # so that the bystander runs while the attack does
        beside = await asyncio.wait_for(bystander.run(judge.WELL), PATIENCE_S)
        run: RunResult = await attack
        wall_s = time.monotonic() - start
        start = time.monotonic()
        then = await asyncio.wait_for(episode.run(preamble(facts) + case.after + judge.WELL), PATIENCE_S)
        then_s = time.monotonic() - start
        start = time.monotonic()
        if case.extra is not None:  # a judge of its own may look at what the host says of the claims
            run = replace(run, images=await self.runner.verify(setup.pictures, run.images))
            then = replace(then, images=await self.runner.verify(setup.pictures, then.images))
        verify_s = time.monotonic() - start
        await episode.close()
        visitor = await self.runner.open(base_setup())
        visit = await asyncio.wait_for(visitor.run(judge.WELL), PATIENCE_S)
        await visitor.close()
        harm = list(self.scene.harm()) + await self._left_over(quiet)
        if first.status is not Status.OK:
            harm.append(f"the first run ended as {first.status}: {first.error[-300:]}")
        after = beside if over(beside) else await asyncio.wait_for(bystander.run(judge.WELL), PATIENCE_S)
        beside = after if beside.status is Status.OK else beside
        return CaseRecord(run, then, beside, visit, tuple(harm), wall_s, verify_s, then_s)

    async def _left_over(self, quiet: int) -> list[str]:
        """Processes that outlived their episode."""
        end = time.monotonic() + GONE_S
        while (left := len(_living()) - quiet) > 0:
            if time.monotonic() > end:
                return [f"{left} processes outlived their episode"]
            await asyncio.sleep(0.01)
        return []


def _living() -> list[int]:
    """Processes below this one; a zombie has ended and waits for its parent only."""
    return [pid for pid in descendants(os.getpid()) if alive(pid)]


async def attack(tier: Tier | None, patterns: tuple[str, ...]) -> None:
    """Makes one round in this process and prints it; at the strongest tier that holds here if ``tier`` is None."""
    cases = suite.chosen(patterns)
    if tier == "none":
        cases = tuple(case for case in cases if case.bites)  # all others could do lasting harm
    weak = tier in ("seccomp", "none")
    config = PoolConfig(active=2, minimum_tier=tier or "landlock", tier=tier, outer_boundary=weak)
    scene = Scene()
    try:
        async with await Pool.start(config) as pool:
            held = cast(Tier, pool.report["tier"])
            print(json.dumps({"sandbox": pool.report, "uid": os.getuid()}), flush=True)
            async for finding in AttackRound(pool, scene, held).run(cases):
                print(json.dumps(asdict(finding)), flush=True)
    finally:
        scene.close()


if __name__ == "__main__":
    asyncio.run(attack(None if sys.argv[1] == "strongest" else cast(Tier, sys.argv[1]), tuple(sys.argv[2:])))
