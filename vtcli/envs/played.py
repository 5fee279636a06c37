"""The calls of a finished demonstration, carried out in its environment: do they do what its messages show?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.code import RunLostError
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.families.messages import PLACEHOLDER
from vtcli.families.thoughts import outside
from vtcli.protocols import DecodedTurn, Env, HasSyntax, Images, Pixels
from vtcli.sandbox.types import EpisodeLostError
from vtcli.schema import ImageRef, Json, Sample
from vtcli.store.images import resize
from vtcli.store.records import Demo

_FAILURE = re.compile(
    r"(?:error|exception)\b|\b(?:fail(?:s|ed|ure)?|invalid|refused|cannot|traceback)\b", re.IGNORECASE
)
"""Words of an observation without a picture by which it is a failure that the demonstration shows on purpose."""


def shows_failure(observation: str) -> bool:
    """True for an observation that is an error."""
    return PLACEHOLDER not in observation and _FAILURE.search(observation) is not None


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """One call of a demonstration's message, and what the environment made of it."""

    message: int
    text: str  # as written
    arguments: Mapping[str, Json]
    error: str | None  # None: it was carried out
    meant: bool  # the demonstration shows a failure
    made: ImageRef | None = None

    @property
    def fails(self) -> bool:
        """True for a call that fails where the demonstration shows a success."""
        return self.error is not None and not self.meant


def reader(env: Env) -> Callable[[str], DecodedTurn]:
    """The reader of turns in an environment's syntax."""
    own = env.syntax.read if isinstance(env, HasSyntax) else None
    return own or (lambda text: DecodedTurn(text, parse_calls(text), parse_answer(text)))


async def play_calls(messages: Sequence[Mapping[str, str]], images: Sequence[ImageRef], env: Env) -> list[PlayedCall]:
    """Carries out every call that an observation follows, on the images that the demonstration has shown before it.
    The images stay those of the demonstration, because later calls count in what it shows.

    Raises:
        RunLostError, EpisodeLostError: the sandbox lost the episode of the code.
    """
    try:
        await env.reset()
        return await _play_calls(messages, images, env)
    finally:
        await env.close()


async def _play_calls(messages: Sequence[Mapping[str, str]], images: Sequence[ImageRef], env: Env) -> list[PlayedCall]:
    read, shown = reader(env), 0
    found: list[PlayedCall] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            shown += message["content"].count(PLACEHOLDER)
            continue
        turn = read(outside(message["content"]))
        if not turn.calls or number + 1 == len(messages):
            continue
        answer = messages[number + 1]["content"]
        meant = shows_failure(answer)
        seen = await env.step(turn, images[:shown])
        results = seen.results if seen else ()
        for place, call in enumerate(turn.calls):
            result = results[place] if place < len(results) else None
            failed = result is None or result.status not in ("ok", "no_output")
            error = (result.message if result else "it is not carried out") if failed else None
            if seen and not failed and not seen.images and PLACEHOLDER in answer:
                error = "it makes no image, and the demonstration shows one"
            one = seen.images[0] if seen and len(seen.images) == 1 and not failed else None
            found.append(PlayedCall(number, call.raw, call.arguments or {}, error, meant, one))
    return found


@dataclass(frozen=True, slots=True)
class Playback:
    """Counts of the calls of some demonstrations, played in an environment."""

    rows: int  # that were played to their end
    calls: int
    meant: int  # failures that the demonstrations show on purpose
    failures: tuple[str, ...]  # what failed against the demonstration: row, call and error
    lost: int = 0  # rows that the sandbox lost
    late: int = 0  # rows that were not played within the time

    @property
    def failed(self) -> float:
        """Share of the calls that fail where their demonstration shows a success."""
        return len(self.failures) / self.calls if self.calls else 0.0


async def playback(
    demos: Iterable[Demo], card: EnvCard, inputs: EnvInputs, *, at_once: int = 1, timeout_s: float | None = None
) -> Playback:
    """Plays the calls of demonstrations, ``at_once`` rows at a time, for at most ``timeout_s``. Calls that are shown
    and not imitated count as meant to fail."""
    waiting, found = enumerate(demos), dict[int, list[PlayedCall] | None]()
    names: dict[int, Demo] = {}

    async def work() -> None:
        for number, demo in waiting:
            names[number] = demo
            try:
                found[number] = await _play(demo, card, inputs)
            except (RunLostError, EpisodeLostError):
                found[number] = None

    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(work() for _ in range(at_once)))
    except TimeoutError:
        names |= dict(waiting)  # those that nobody began
    played = [(names[number], calls) for number, calls in sorted(found.items()) if calls is not None]
    failures = tuple(
        f"{demo.id}: {' '.join(call.text.split())[:120]}: {' '.join((call.error or '').split())[:300]}"
        for demo, calls in played
        for call in calls
        if call.fails and call.message not in demo.unlearnt
    )
    every = [call for _, calls in played for call in calls]
    return Playback(
        rows=len(played),
        calls=len(every),
        meant=sum(call.error is not None for call in every) - len(failures),
        failures=failures,
        lost=len(found) - len(played),
        late=len(names) - len(found),
    )


async def _play(demo: Demo, card: EnvCard, inputs: EnvInputs) -> list[PlayedCall]:
    found = await _play_on(demo, demo.images, card, inputs)
    if card.runner and card.coordinates == "full" and any(call.fails for call in found):
        # A stored image may be the view of a larger one, whose pixels the code counts in, and whose size nobody keeps.
        larger = [_enlarged(ref) for ref in demo.images]
        if larger != list(demo.images):
            again = await _play_on(demo, larger, card, replace(inputs, images=EnlargedImages(inputs.images)))
            found = min(found, again, key=lambda calls: sum(call.fails for call in calls))
    return found


async def _play_on(demo: Demo, images: Sequence[ImageRef], card: EnvCard, inputs: EnvInputs) -> list[PlayedCall]:
    first = next((m["content"] for m in demo.messages if m["role"] == "user"), "")
    shown = tuple(images[: first.count(PLACEHOLDER)])
    sample = card.offer(Sample(demo.id, "demonstration", "answer", "train", "", "", shown, ()))
    return await play_calls(demo.messages, images, card.open(sample, inputs))


LARGER, LARGEST_SIDE = 8, 4096
"""Factor by which a view is enlarged to stand for its original, and the side at which that ends."""


def _enlarged(ref: ImageRef) -> ImageRef:
    """The image at the size of a possible original, if it is its own view; else itself. For ``EnlargedImages``."""
    scale = min(LARGER, LARGEST_SIDE / max(ref.width, ref.height))
    if (ref.width, ref.height) != (ref.view_width, ref.view_height) or scale <= 1:
        return ref
    return replace(ref, width=round(ref.width * scale), height=round(ref.height * scale))


class EnlargedImages:
    """``Images`` that are enlarged to the size that their reference states whenever somebody reads their full pixels,
    which an environment does in a thread. Images that are added stay in memory."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._added: dict[str, Pixels] = {}

    def add(self, pixels: Pixels, parent: int | None = None, transform: Mapping[str, Any] | None = None) -> ImageRef:
        height, width = pixels.shape[:2]
        name = f"added {len(self._added)}"  # no sha256
        self._added[name] = pixels
        return ImageRef(name, name, width, height, width, height, parent, transform)

    def full(self, ref: ImageRef) -> Pixels:
        if ref.full in self._added:
            return self._added[ref.full]
        return resize(self._images.full(ref), ref.height, ref.width)

    def view(self, ref: ImageRef) -> Pixels:
        return self._added[ref.view] if ref.view in self._added else self._images.view(ref)
