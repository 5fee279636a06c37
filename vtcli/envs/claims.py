"""Tests of claims about images that code made, on finished trajectories.

An image of code carries the operations that its process claims, and the sha256 of the picture that they started from.
Who needs certainty asks for a test: a reward that reads a signal of claims (``signals.claimed``), or a judge that looks
at what code showed. The sandbox then does the operations again; without a question, it does not.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

from vtcli import rewards
from vtcli.envs.code_writing import operations
from vtcli.protocols import Images, Reward
from vtcli.sandbox.replay.plan import CannotTell, plan
from vtcli.sandbox.types import EpisodeLostError, Operation, OutputImage, Picture
from vtcli.schema import EnvTurn, ImageRef, Json, Scored, Signals, Stop, Trajectory, Turn
from vtcli.signals.measuring import SignalMeter
from vtcli.store.image_work import in_thread

Verify = Callable[[Sequence[Picture], Sequence[OutputImage]], Awaitable[tuple[OutputImage, ...]]]
"""Does operations again, see ``sandbox.host.pool.Pool.verify``."""

Key = tuple[str, str, str]
"""The content of a claim: its picture, its image and its operations."""

MOST_IMAGES = 16  # of one replay
MOST_BYTES = 64 * 2**20  # of their pixels
AT_A_TIME = 8  # trajectories whose pixels are in memory
KEPT = 1 << 16  # verdicts


@dataclass(frozen=True, slots=True)
class Claim:
    """One image of a trajectory by its ``index``, made from the image ``start``; the rest is what a replay needs."""

    index: int
    start: int
    picture: str  # sha256 of the PNG that the code was given
    operations: tuple[Operation, ...]  # of picture 0

    def key(self, ref: ImageRef) -> Key:
        """Equal for equal claims about image ``ref``, in whatever trajectory."""
        steps = [[o.name, o.arguments, o.library] for o in self.operations]
        return self.picture, ref.full, json.dumps(steps, sort_keys=True)


@dataclass(frozen=True, slots=True)
class _Verdict:
    verified: bool | None
    operations: tuple[Operation, ...]


class Claims:
    """Tests of claims for one run. ``measure`` measures again what rests on them; with a judge that looks at images,
    claims are tested before anything is measured. Equal claims are tested once."""

    def __init__(self, images: Images, verify: Verify, measure: SignalMeter) -> None:
        self._images, self._verify, self.measure = images, verify, measure
        self._known: OrderedDict[Key, _Verdict] = OrderedDict()
        self._room = asyncio.Semaphore(AT_A_TIME)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by picture

    async def before(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory as it is to be measured first."""
        return await self.tested(trajectory) if self.measure.looks else trajectory

    async def rewarded(self, reward: Reward, found: Sequence[tuple[Trajectory, Signals]]) -> tuple[Scored, ...]:
        """The verdicts on a group. Where the reward reads what rests on claims, these are tested, and it is asked
        again."""
        verdicts, read = rewards.apply(reward, [signals for _, signals in found])
        # A test runs code's operations again, so only rewards that read what rests on them pay for it.
        # ``read`` was recorded while the reward ran, so that a reward from outside declares nothing.
        if read & self.measure.claimed:
            again = await asyncio.gather(*(self.settled(*each) for each in found))
            if any(new is not old for (new, _), (old, _) in zip(again, found, strict=True)):
                found, verdicts = again, rewards.verdicts(reward, [signals for _, signals in again])
        return tuple(Scored(t, s, v) for (t, s), v in zip(found, verdicts, strict=True))

    async def settled(self, trajectory: Trajectory, signals: Signals) -> tuple[Trajectory, Signals]:
        """The same with its claims tested; both are the given ones where there was nothing to test."""
        found = await self.tested(trajectory)
        if found is trajectory:
            return trajectory, signals
        if found.stop is Stop.BROKEN:
            return found, (await self.measure([found]))[0]
        return found, await self.measure.again(found, signals)

    async def tested(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with ``verified``, parents and boxes of its images; the given one where nothing can be
        tested. A test that the sandbox lost breaks it: no verdict, no gradient, counted."""
        claims = open_claims(trajectory)
        if not claims or trajectory.stop is Stop.BROKEN:
            return trajectory
        try:
            verdicts = await self._verdicts(trajectory, claims)
        except EpisodeLostError as error:
            return replace(trajectory, stop=Stop.BROKEN, error=f"EpisodeLostError: {error}")
        # The very same object, by which callers see that nothing is to be measured again.
        if all(verdict.verified is None for verdict in verdicts):
            return trajectory
        refs = list(trajectory.images)
        for claim, verdict in zip(claims, verdicts, strict=True):
            refs[claim.index] = _told(refs[claim.index], claim, verdict)
        return _with_images(trajectory, refs)

    async def _verdicts(self, trajectory: Trajectory, claims: Sequence[Claim]) -> list[_Verdict]:
        """Verdicts of claims, in order. Trajectories of one question follow each other, as many claim the same."""
        async with self._locks.setdefault(min(claim.picture for claim in claims), asyncio.Lock()):
            return await self._in_turn(trajectory, claims)

    async def _in_turn(self, trajectory: Trajectory, claims: Sequence[Claim]) -> list[_Verdict]:
        keys = [claim.key(trajectory.images[claim.index]) for claim in claims]
        found = {key: self._known[key] for key in keys if key in self._known}
        new = {key: claim for key, claim in zip(keys, claims, strict=True) if key not in found}
        for part in _parts(trajectory, new):
            async with self._room:
                found |= await self._replayed(trajectory, part)
        for key in keys:
            self._known[key] = found[key]
            self._known.move_to_end(key)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return [found[key] for key in keys]

    async def _replayed(self, trajectory: Trajectory, part: Mapping[Key, Claim]) -> dict[Key, _Verdict]:
        """Verdicts of one replay. Files are read beside the event loop."""
        pictures, images = await in_thread(partial(self._read, trajectory, list(part.values())))
        judged = await self._verify(pictures, images)
        return {key: _Verdict(image.verified, image.operations) for key, image in zip(part, judged, strict=True)}

    def _read(self, trajectory: Trajectory, claims: Sequence[Claim]) -> tuple[list[Picture], list[OutputImage]]:
        """Pictures, each once, and the images that claim to come from them."""
        pictures: dict[str, Picture] = {}
        images: list[OutputImage] = []
        for claim in claims:
            start = trajectory.images[claim.start]
            if claim.picture not in pictures:
                whole = claim.picture == start.full
                pictures[claim.picture] = Picture(self._images.full(start) if whole else self._images.view(start))
            place = list(pictures).index(claim.picture)
            chain = tuple(replace(operation, image=place) for operation in claim.operations)
            images.append(OutputImage(self._images.full(trajectory.images[claim.index]), "show", operations=chain))
        return list(pictures.values()), images


def open_claims(trajectory: Trajectory) -> list[Claim]:
    """The claims of a trajectory that were not tested yet and can be: with a picture, and operations that have a plan.
    A record that was stored without the picture stays a claim."""
    return [claim for index in range(len(trajectory.images)) if (claim := _claim(trajectory.images, index))]


def lacks_picture(trajectory: Trajectory) -> bool:
    """True if a claim was stored without the one picture that it starts from. It cannot be tested then."""
    found = [ref.transform for ref in trajectory.images if ref.transform and ref.transform.get("op") == "code"]
    starts = [{step.get("image") for step in how.get("operations") or ()} for how in found if "picture" not in how]
    return any(len(start) == 1 and None not in start for start in starts)


def _claim(images: Sequence[ImageRef], index: int) -> Claim | None:
    how = images[index].transform or {}
    chain: Json = how.get("operations")
    if how.get("op") != "code" or how.get("verified") is not None or not how.get("picture") or not chain:
        return None
    # A chain that begins at several pictures has no single parent, and so no box.
    start = chain[0].get("image")
    if not isinstance(start, int) or not 0 <= start < index or any(step.get("image") != start for step in chain):
        return None
    ref = images[start]
    sizes = {ref.view: (ref.view_width, ref.view_height), ref.full: (ref.width, ref.height)}
    if how["picture"] not in sizes:
        return None
    operations = tuple(Operation(step["name"], step["arguments"], step["library"], 0) for step in chain)
    try:
        plan(operations, [sizes[how["picture"]]])
    except CannotTell:
        return None
    return Claim(index, start, how["picture"], operations)


def _parts(trajectory: Trajectory, claims: Mapping[Key, Claim]) -> list[dict[Key, Claim]]:
    """Claims in portions of one replay each."""
    parts: list[dict[Key, Claim]] = []
    left = 0
    for key, claim in claims.items():
        ref = trajectory.images[claim.index]
        size = ref.width * ref.height * 3
        if not parts or len(parts[-1]) == MOST_IMAGES or size > left:
            parts.append({})
            left = MOST_BYTES
        parts[-1][key] = claim
        left -= size
    return parts


def _told(ref: ImageRef, claim: Claim, verdict: _Verdict) -> ImageRef:
    """An image with the verdict on its claim. Its parent is known where the claim is true."""
    if verdict.verified is None:
        return ref
    found: dict[str, Json] = {
        "verified": verdict.verified, "operations": operations(verdict.operations, claim.start)
    }  # fmt: skip
    parent = claim.start if verdict.verified else None
    return replace(ref, parent=parent, transform={**(ref.transform or {}), **found})


def _with_images(trajectory: Trajectory, refs: Sequence[ImageRef]) -> Trajectory:
    """The trajectory with other records of its images, also in the observations that show them."""
    turns: list[Turn] = []
    at = len(trajectory.sample.images)
    for turn in trajectory.turns:
        if isinstance(turn, EnvTurn):
            shown = tuple(refs[at : at + len(turn.observation.images)])
            at += len(shown)
            turns.append(replace(turn, observation=replace(turn.observation, images=shown)))
        else:
            turns.append(turn)
    return replace(trajectory, images=tuple(refs), turns=tuple(turns))
