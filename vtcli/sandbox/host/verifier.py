"""Verification of claims about images: the claimed chain is replayed on the input picture, in a confined episode of
its own. The episode has a clock, a CPU limit and a memory limit. It runs only our code (``replay.redo``)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from vtcli.errors import ConfigError
from vtcli.sandbox.host.episode import PooledEpisode
from vtcli.sandbox.replay.plan import CannotTell, ReplayPlan, plan
from vtcli.sandbox.types import OVER, EpisodeLostError, Help, OutputImage, Picture, RunLimits, Setup, Status

LIMITS = RunLimits(wall_s=10.0, cpu_s=10.0, source_bytes=256 * 1024, kept_output_chars=4096)
"""Limits of the replay of all images of one run."""
NO_HELP = Help(dedent=False, syntax=False, paths=False, clamp=False, check=False)

Open = Callable[[Setup], Awaitable[PooledEpisode]]


async def verified(open_: Open, pictures: Sequence[Picture], images: Sequence[OutputImage]) -> tuple[OutputImage, ...]:
    """Returns ``images`` with ``OutputImage.verified`` filled in. ``pictures``: the input of the run that made them.
    Never raises for the contents of operations: a replay that does not end within ``LIMITS`` gives None.

    Raises:
        EpisodeLostError: the replay could not start, or its process was lost. This is our fault: no claim is judged.
    """
    sizes = [(p.pixels.shape[1], p.pixels.shape[0]) for p in pictures]
    plans = [_plan(image, sizes) for image in images]
    if not any(plans):
        return tuple(images)
    verdicts = iter(await _redone(open_, pictures, images, plans))
    return tuple(
        image if found is None else _judged(image, found, next(verdicts))
        for image, found in zip(images, plans, strict=True)
    )


def _plan(image: OutputImage, sizes: Sequence[tuple[int, int]]) -> ReplayPlan | None:
    try:
        return plan(image.operations, sizes)
    except CannotTell:
        return None


def _judged(image: OutputImage, found: ReplayPlan, verdict: bool | None) -> OutputImage:
    if found.size != (image.pixels.shape[1], image.pixels.shape[0]):
        verdict = False
    return replace(image, verified=verdict, operations=found.operations if verdict is not None else image.operations)


async def _redone(
    open_: Open, pictures: Sequence[Picture], images: Sequence[OutputImage], plans: Sequence[ReplayPlan | None]
) -> list[bool | None]:
    """Verdicts of the plans, in one episode for all."""
    used = sorted({found.image for found in plans if found is not None})
    claims, given = list[object](), [Picture(pictures[index].pixels) for index in used]
    for image, found in zip(images, plans, strict=True):
        if found is not None:
            claims.append([used.index(found.image), list(found.steps), len(given)])
            given.append(Picture(image.pixels))
    names = {f"image_{index}": index for index in range(len(given))}
    program = f"from vtcli.sandbox.replay import redo\nredo.main({json.dumps(claims)!r}, [{', '.join(names)}])\n"
    nothing: list[bool | None] = [None] * len(claims)
    setup = Setup(tuple(given), names, capture=(), transactions=False, limits=LIMITS, help=NO_HELP)
    try:
        episode = await open_(setup)
    except ConfigError:  # more images than one episode takes: the code's doing
        return nothing
    try:
        result = await episode.run(program)
    finally:
        await episode.close()
    if result.status in OVER:
        raise EpisodeLostError(f"a verification was lost ({result.status}): {result.error}")
    if result.status is not Status.OK:
        return nothing
    verdicts = json.loads(result.output)
    return verdicts if len(verdicts) == len(claims) else nothing
