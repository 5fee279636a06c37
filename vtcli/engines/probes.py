"""Rows on which policy and learner are compared. A seed makes them up, pictures included.

Where the engines take rows of thousands of tokens, the pictures are as large as in training. An error in the order of
windows, in positions far out or in a cache of images shows at such sizes alone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from vtcli.engines.policies import ROOM, TrainedPolicy
from vtcli.families.family import Family
from vtcli.protocols import Chat, Pixels, Request, Sampling, View
from vtcli.rollout.loop import derive_seed
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageLimits

SMALL = ((56, 56), (84, 56), (56, 112), (112, 84))  # (width, height), before the family's own rule
LARGE = ((1008, 756), (756, 1008), *SMALL[2:])  # 63 and more windows of Qwen2.5-VL's vision tower
LONG = 4096
"""Tokens of the longest row, where the engines take so many."""
LARGE_ROOM = 2560
"""Tokens of a row from which on the large pictures fit; below it all pictures are small, and so are the rows."""
RESERVE = 256
"""Tokens kept free for the last turns of the longest row."""
_NAME = "parity-probe-"


@dataclass(frozen=True)
class Probes:
    """Settings of the rows. Another ``seed`` makes other pictures and draws other tokens."""

    seed: int = 0
    room: int = ROOM  # tokens of a row, at most
    turn_tokens: int = 12  # of every policy turn, at most
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class _Conversation:
    """The question of a row, and the text and images of the observation of each further turn."""

    name: str
    question: str
    images: tuple[ImageRef, ...] = ()
    turns: tuple[tuple[str, tuple[ImageRef, ...]], ...] = ()
    fill: int | None = None  # the index of the turn whose text is as long as the row's room allows


def probing(view: View) -> View:
    """``view``, and the pictures of the probes, which are made here and stored nowhere."""

    def look(ref: ImageRef) -> Pixels:
        if not ref.view.startswith(_NAME):
            return view(ref)
        random = np.random.default_rng(int(ref.view.removeprefix(_NAME).partition("-")[0]))
        return random.integers(0, 256, (ref.view_height, ref.view_width, 3), dtype=np.uint8)

    return look


def nothing(ref: ImageRef) -> Pixels:
    """A view of no images: with ``probing``, of the probes' alone."""
    raise KeyError(ref.view)


def probe(number: int, family: Family, size: tuple[int, int] | None = None) -> ImageRef:
    """The picture of a number, of a size (width, height); ``probing`` draws it."""
    wide, high = size or SMALL[number % len(SMALL)]
    height, width = family.sizing(ImageLimits(1, 2**31))(high, wide)
    name = f"{_NAME}{number}-{width}x{height}"  # engines keep images by name: another size is another picture
    return ImageRef(name, name, width, height, width, height)


async def rows(policy: TrainedPolicy, family: Family, probes: Probes) -> list[TrainRow]:
    """Rows with 0, 1, 2 and adjacent images and with several turns, sampled by the policy."""
    found = _conversations(family, probes)
    return await asyncio.gather(*(_row(policy, family.chat, c, probes) for c in found))


def _conversations(family: Family, probes: Probes) -> list[_Conversation]:
    large = probes.room >= LARGE_ROOM
    sizes = LARGE if large else SMALL
    a, b, c, d = (probe(derive_seed(probes.seed, nth), family, size) for nth, size in enumerate(sizes))
    said = "What is it?"
    turns = (("", (b,)), ("", ()), ("", (c, d)))
    return [
        _Conversation("no image", said),
        _Conversation("one image", said, (a,)),
        _Conversation("two images", f"First <image> and then <image>. {said}", (b, c)),
        _Conversation("adjacent images", f"<image><image>{said}", (d, c)),
        _Conversation("several turns", said, (a,), turns, 1 if large else None),
    ]


async def _row(policy: TrainedPolicy, chat: Chat, conversation: _Conversation, probes: Probes) -> TrainRow:
    turns = conversation.turns
    ids = list(chat.prompt("Look closely.", conversation.question, conversation.images))
    shown, mask, logprobs = list(conversation.images), [0] * len(ids), [0.0] * len(ids)
    for nth in range(len(turns) + 1):
        if nth:
            said, images = turns[nth - 1]
            if conversation.fill == nth - 1:
                said = _filling(chat, min(LONG, probes.room) - RESERVE - len(ids), probes.seed)
            text = chat.observe("<image>" * len(images) + f"seen {nth}{said}", images)
            text = text if ids[-1] in chat.end_ids else (chat.end_ids[0], *text)
            ids, mask, logprobs = ids + list(text), mask + [0] * len(text), logprobs + [0.0] * len(text)
            shown += images
        seed = derive_seed(probes.seed, conversation.name, nth)
        done = await policy.complete(Request(tuple(ids), tuple(shown), probes.turn_tokens, probes.sampling, seed))
        ids, mask = ids + list(done.token_ids), mask + [1] * len(done.token_ids)
        logprobs += done.logprobs
    return TrainRow(conversation.name, tuple(ids), tuple(mask), tuple(shown), tuple(logprobs))


def _filling(chat: Chat, tokens: int, seed: int) -> str:
    """Numbers, as a tool may print them, of at most so many tokens and nearly as many."""
    drawn = np.random.default_rng(seed).integers(0, 1000, max(tokens, 1))
    words = [f" {number}" for number in drawn]  # a token each at least
    count = len(words)
    while count and (found := len(chat.observe("".join(words[:count]), ()))) > tokens:
        count = min(count - 1, count * tokens // found) if tokens > 0 else 0
    return "".join(words[:count])
