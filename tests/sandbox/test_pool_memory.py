"""Memory of an episode that waits."""

from __future__ import annotations

import numpy as np
import pytest
from sandbox_world import World, pss, setup

from vtcli.sandbox.types import Picture

PHOTO = np.zeros((1224, 1632, 3), np.uint8)
PHOTO.flags.writeable = False


@pytest.mark.parametrize(("picture", "most_mb"), [(None, 14.0), (Picture(PHOTO), 22.0)], ids=["small", "2 megapixels"])
def test_an_idle_episode_is_small(strongest: World, picture: Picture | None, most_mb: float) -> None:
    """Growth of the proportional set size by eight idle episodes that made one run each."""
    changes = {} if picture is None else {"pictures": (picture,)}

    async def go() -> float | None:
        pool = strongest.pool
        first = await pool.open(setup(**changes))
        before = pss(pool.template_pid)
        episodes = [await pool.open(setup(**changes)) for _ in range(8)]
        for episode in episodes:
            await episode.run("x = image.size")
        after = pss(pool.template_pid)
        for episode in (first, *episodes):
            await episode.close()
        return None if before is None or after is None else (after - before) / 8

    grown = strongest.do(go())
    if grown is None:
        pytest.skip("the kernel hides other users' memory")
    assert grown < most_mb
