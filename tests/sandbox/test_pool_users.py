"""The pool where there is no root, and where a container allows no namespaces: the same results at the tier that
holds there."""

from __future__ import annotations

import pytest
from confinement import can_become_user, script

PROGRAM = """
import asyncio, os
import numpy as np
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.types import Picture, RunLimits, Setup

async def main():
    async with await Pool.start(PoolConfig(active=2)) as pool:
        print(pool.report["tier"], os.geteuid())
        pixels = np.arange(64 * 48 * 3, dtype=np.uint8).reshape(48, 64, 3)
        setup = Setup((Picture(pixels),), {"image": 0}, limits=RunLimits(wall_s=2.0), capture=("pil_show",))
        episodes = [await pool.open(setup) for _ in range(4)]
        one = episodes[0]
        for source in (
            "x = 1; image.crop((2, 3, 20, 30)).show()",
            "x = 2; open('a', 'w').write('b'); 1/0",
            "print(x, __import__('os').listdir('.'))",
            "while True: pass",
            "import ctypes; ctypes.string_at(0)",
            "x = 3; print(open('/etc/passwd').read())",
            "import os, shutil; open('a', 'w').write('b'); shutil.copy2('a', 'c'); print(len(os.listdir('.')))",
            "print(x)",
        ):
            result = await one.run(source)
            sure = await pool.verify(setup.pictures, result.images)
            print(result.status, result.output.strip(), [i.verified for i in sure])
        print([(await e.run("print(5)")).output for e in episodes[1:]])

asyncio.run(main())
"""
EXPECTED = """ok  [True]
error  []
ok 1 [] []
timeout  []
crash  []
error  []
ok 2 []
ok 1 []
['5\\n', '5\\n', '5\\n']
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starter", "tiers"),
    [
        ((), ("full", "landlock")),
        (("user",), ("full", "landlock")),
        pytest.param(("container",), ("landlock",), marks=pytest.mark.wide),
        pytest.param(("user", "container"), ("landlock",), marks=pytest.mark.wide),
    ],
    ids=lambda v: "-".join(v) or "as-it-is",
)
def test_the_same_results_for_every_user(starter: tuple[str, ...], tiers: tuple[str, ...]) -> None:
    if "user" in starter and not can_become_user():
        pytest.skip("only root can become another user")
    done = script(PROGRAM, *starter, timeout=110)
    first, _, rest = done.stdout.partition("\n")
    assert first.split(" ")[0] in tiers, done.stderr[-2000:]
    assert ("user" in starter) <= (first.split(" ")[1] != "0")
    assert rest == EXPECTED, (rest, done.stderr[-2000:])
