"""The calls of a finished demonstration, carried out in its environment: do they do what its messages show?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.families.messages import PLACEHOLDER
from vtcli.families.thoughts import outside
from vtcli.protocols import DecodedTurn, Env, HasSyntax
from vtcli.schema import ImageRef, Json, Sample
from vtcli.store.records import Demo

_FAILURE = re.compile(r"\b(?:error|exception|fail(?:s|ed|ure)?|invalid|refused|cannot|traceback)\b", re.IGNORECASE)
"""Words of an observation without a picture by which it is a failure that the demonstration shows on purpose."""


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
    The images stay those of the demonstration, because later calls count in what it shows."""
    await env.reset()
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
        meant = PLACEHOLDER not in answer and _FAILURE.search(answer) is not None
        seen = await env.step(turn, images[:shown])
        results = seen.results if seen else ()
        for place, call in enumerate(turn.calls):
            result = results[place] if place < len(results) else None
            failed = result is None or result.status not in ("ok", "no_output")
            error = (result.message if result else "it is not carried out") if failed else None
            one = seen.images[0] if seen and len(seen.images) == 1 and not failed else None
            found.append(PlayedCall(number, call.raw, call.arguments or {}, error, meant, one))
    await env.close()
    return found


@dataclass(frozen=True, slots=True)
class Playback:
    """Counts of the calls of some demonstrations, played in an environment."""

    rows: int
    calls: int
    meant: int  # failures that the demonstrations show on purpose
    failures: tuple[str, ...]  # what failed against the demonstration: row, call and error

    @property
    def failed(self) -> float:
        """Share of the calls that fail where their demonstration shows a success."""
        return len(self.failures) / self.calls if self.calls else 0.0


async def playback(demos: Iterable[Demo], card: EnvCard, inputs: EnvInputs) -> Playback:
    """Plays the calls of demonstrations. Calls that are shown and not imitated count as meant to fail."""
    rows = calls = meant = 0
    failures: list[str] = []
    for demo in demos:
        rows += 1
        first = next((m["content"] for m in demo.messages if m["role"] == "user"), "")
        shown = demo.images[: first.count(PLACEHOLDER)]
        sample = card.offer(Sample(demo.id, "demonstration", "answer", "train", "", "", shown, ()))
        for call in await play_calls(demo.messages, demo.images, card.open(sample, inputs)):
            calls += 1
            if call.error is None:
                continue
            if call.meant or call.message in demo.unlearnt:
                meant += 1
            else:
                failures.append(f"{demo.id}: {call.text.strip()[:120]}: {call.error}")
    return Playback(rows, calls, meant, tuple(failures))
