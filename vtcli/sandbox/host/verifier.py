"""Verification of claims about images: the claimed chain is replayed on the input picture, in a confined episode of
its own. The episode has a clock, a CPU limit and a memory limit. It runs only our code (``replay.redo``)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from vtcli.errors import ConfigError
from vtcli.sandbox.host.episode import PooledEpisode
from vtcli.sandbox.replay.plan import CannotTell, ReplayPlan, plan
from vtcli.sandbox.types import OVER, EpisodeLostError, Help, OutputImage, Picture, RunLimits, Setup

LIMITS = RunLimits(wall_s=10.0, cpu_s=10.0, source_bytes=256 * 1024, kept_output_chars=4096)
"""Limits of the replay of all images of one run."""
MOST_WORK = 1 << 28
"""Pixels that the steps of all claims of one run read or write, about two seconds. The cheapest claims come first."""

MOST_CHARS, MOST_IMAGES = 128 * 1024, 16
"""Of the claims of one episode: their steps as JSON, and their images."""

NO_HELP = Help(dedent=False, syntax=False, paths=False, clamp=False, check=False)

Open = Callable[[Setup], Awaitable[PooledEpisode]]


async def verified(open_: Open, pictures: Sequence[Picture], images: Sequence[OutputImage]) -> tuple[OutputImage, ...]:
    """Returns ``images`` with ``OutputImage.verified`` filled in. ``pictures``: the input of the run that made them.
    Never raises for the contents of operations. A claim beyond ``MOST_WORK``, or whose replay does not end in time, is
    None; the others are judged all the same, so that a slow claim hides no false one.

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
    """Verdicts of the plans. The cheapest are repeated first, in as few episodes as hold their images and steps."""
    every = [(image, found) for image, found in zip(images, plans, strict=True) if found is not None]
    verdicts: list[bool | None] = [None] * len(every)
    order = sorted(range(len(every)), key=lambda number: every[number][1].work)
    work = itertools.accumulate(every[number][1].work for number in order)
    left = [number for number, spent in zip(order, work, strict=True) if spent <= MOST_WORK]
    while left:
        size = itertools.accumulate(len(json.dumps(every[number][1].steps)) for number in left)
        fits = sum(room <= MOST_CHARS and place < MOST_IMAGES for place, room in enumerate(size)) or 1
        chosen, left = left[:fits], left[fits:]
        for number, verdict in (await _repeated(open_, pictures, [every[number] for number in chosen])).items():
            verdicts[chosen[number]] = verdict
    return verdicts


async def _repeated(
    open_: Open, pictures: Sequence[Picture], claims: Sequence[tuple[OutputImage, ReplayPlan]]
) -> dict[int, bool | None]:
    """Returns verdicts by the places of their claims, for the claims that one episode tested."""
    used = sorted({found.image for _, found in claims})
    given = [Picture(pictures[index].pixels) for index in used]
    steps = [[used.index(found.image), found.steps, len(used) + n] for n, (_, found) in enumerate(claims)]
    given += [Picture(image.pixels) for image, _ in claims]
    names = {f"image_{index}": index for index in range(len(given))}
    program = f"from vtcli.sandbox.replay import redo\nredo.main({json.dumps(steps)!r}, [{', '.join(names)}])\n"
    setup = Setup(tuple(given), names, capture=(), transactions=False, limits=LIMITS, help=NO_HELP)
    try:
        episode = await open_(setup)
    except ConfigError:  # more input pictures than one episode takes: the code's doing
        return {}
    try:
        result = await episode.run(program)
    finally:
        await episode.close()
    if result.status in OVER:
        raise EpisodeLostError(f"a verification was lost ({result.status}): {result.error}")
    verdicts = list[bool | None]()
    with suppress(ValueError):  # the end of a replay that was stopped
        for line in result.output.splitlines():
            verdicts.append(json.loads(line))
    return dict(enumerate(verdicts[: len(claims)]))
