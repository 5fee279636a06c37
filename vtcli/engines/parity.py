"""Parity of policy and learner: the same rows through both, and the input that differs if they disagree.

A difference in inputs raises nothing by itself. Examples are an image that one side resizes, positions that one side
counts otherwise, and weights that did not arrive. Training would go on with wrong importance ratios, so the start
refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from vtcli.engines.inputs import Seen, seen
from vtcli.engines.policies import IMAGES, ROOM, Engine, Placement, TrainedPolicy, open_policy
from vtcli.errors import EngineError
from vtcli.families.family import Family
from vtcli.protocols import Chat, Pixels, Request, Sampling, View
from vtcli.rollout.loop import Limits
from vtcli.rollout.threads import EventLoop, Runs
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageLimits

GAP_FP32 = 1e-4
"""Largest difference of a log-probability, nats, where both compute in fp32."""
KL_BF16 = 5e-3
"""Largest mean KL a token, nats, where one of them rounds to bf16."""
TOKENS = 12
"""Tokens of every policy turn."""

Dtype = Literal["float32", "bfloat16"]

_SHAPES = ((56, 56), (84, 56), (56, 112), (112, 84))  # (width, height), before the family's own rule
_NAME = "parity-probe-"


class Logprobs(Protocol):
    """Interface that parity needs of the learner."""

    def logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]: ...


@dataclass(frozen=True)
class EngineAgreement:
    """Policy and learner on one row."""

    name: str
    images: int
    tokens: int  # sampled
    gap: float  # largest difference of a log-probability, nats
    kl: float  # mean over the tokens of k3(policy ‖ learner), nats
    differs: tuple[str, ...]  # inputs, a sentence each


def probing(view: View) -> View:
    """``view``, and the pictures of the probes, which are made here and stored nowhere."""

    def look(ref: ImageRef) -> Pixels:
        if not ref.view.startswith(_NAME):
            return view(ref)
        random = np.random.default_rng(int(ref.view.removeprefix(_NAME)))
        return random.integers(0, 256, (ref.view_height, ref.view_width, 3), dtype=np.uint8)

    return look


def probe(nth: int, family: Family) -> ImageRef:
    """The n-th probe's picture; ``probing`` draws it."""
    wide, high = _SHAPES[nth % len(_SHAPES)]
    height, width = family.sizing(ImageLimits(1, 2**31))(high, wide)
    return ImageRef(f"{_NAME}{nth}", f"{_NAME}{nth}", width, height, width, height)


@dataclass(frozen=True)
class SampledRow:
    """A row that the policy sampled, and how it read the row."""

    row: TrainRow
    reading: Seen


def samples(loop: Runs, policy: TrainedPolicy, family: Family, temperature: float = 1.0) -> list[SampledRow]:
    """Rows with 0, 1, 2 and adjacent images and with several turns, sampled by the policy."""
    rows = loop.run(_rows(policy, family, temperature))
    return [SampledRow(row, policy.seen(Request(row.token_ids, row.images, 1, Sampling(), 0))) for row in rows]


def agreements(sampled: Sequence[SampledRow], learner: Logprobs, family: Family, view: View) -> list[EngineAgreement]:
    """The same rows, computed by the learner. The policy has no part in it, and may be asleep.

    ``view`` and both engines must know the probes (``probing``), and the learner the temperature.
    """
    known = learner.logprobs([each.row for each in sampled])
    return [_compared(each, found, family, view) for each, found in zip(sampled, known, strict=True)]


def require(found: Sequence[EngineAgreement], dtype: str) -> None:
    """Refuse to go on where policy and learner disagree.

    Raises:
        EngineError: says by how much on which rows, and which inputs differ.
    """
    bad = [a for a in found if not agrees(a, dtype)]
    if not bad:
        return
    limit = f"{GAP_FP32:g} nats on any token" if dtype == "float32" else f"a mean KL of {KL_BF16:g} nats"
    lines = [f"policy and learner disagree on {len(bad)} of {len(found)} rows by more than {limit} ({dtype}):"]
    for a in bad:
        lines.append(f"  - {a.name}: {a.tokens} tokens, {a.images} images: up to {a.gap:.3g}, mean KL {a.kl:.3g}")
        lines += [f"      {line} (policy and learner)" for line in a.differs]
    if any(a.differs for a in bad):
        lines.append("The inputs differ as said: mend the model's processor and tokenizer files, or use engine=hf.")
    else:
        lines.append(
            "All inputs are equal (ids, pixels, positions), so the weights or the arithmetic differ: check that both "
            "loaded the same model and dtype, or use engine=hf."
        )
    raise EngineError("\n".join(lines))


def agrees(a: EngineAgreement, dtype: str) -> bool:
    """Within the limit of the dtype; a difference that is not a number does not agree."""
    return a.gap <= GAP_FP32 if dtype == "float32" else a.kl <= KL_BF16


def check(family: Family, engine: Engine, dtype: Dtype) -> list[EngineAgreement]:
    """``agreements`` of a model, with engines opened for it."""
    from vtcli.algo.optim import Backend, Optim
    from vtcli.engines.hf import load_model
    from vtcli.engines.learner.deepspeed import DeepSpeedLearner

    def nothing(ref: ImageRef) -> Pixels:
        raise KeyError(ref.view)

    view = probing(nothing)
    learner = DeepSpeedLearner(
        load_model(family, dtype),
        family,
        view,
        optim=Optim(),
        backend=Backend(dtype=dtype),
        total_steps=1,
    )
    place = Placement(dtype, str(learner.engine.device))
    policy = open_policy(engine, family, view, Limits(max_tokens=ROOM, max_images=IMAGES), place)
    try:
        with EventLoop() as loop:
            return agreements(samples(loop, policy, family), learner, family, view)
    finally:
        policy.close()


@dataclass(frozen=True)
class _Conversation:
    """The question of a row, and the images of the observation of each further turn."""

    name: str
    question: str
    images: tuple[ImageRef, ...] = ()
    turns: tuple[tuple[ImageRef, ...], ...] = ()


async def _rows(policy: TrainedPolicy, family: Family, temperature: float) -> list[TrainRow]:
    chat, (a, b, c, d) = family.chat, [probe(nth, family) for nth in range(4)]
    said = "What is it?"
    conversations = [
        _Conversation("no image", said),
        _Conversation("one image", said, (a,)),
        _Conversation("two images", f"First <image> and then <image>. {said}", (b, c)),
        _Conversation("adjacent images", f"<image><image>{said}", (d, a)),
        _Conversation("several turns", said, (b,), ((c,), (), (d, a))),
    ]
    return await asyncio.gather(*(_row(policy, chat, c, Sampling(temperature)) for c in conversations))


async def _row(policy: TrainedPolicy, chat: Chat, conversation: _Conversation, sampling: Sampling) -> TrainRow:
    turns = conversation.turns
    ids = list(chat.prompt("Look closely.", conversation.question, conversation.images))
    shown, mask, logprobs = list(conversation.images), [0] * len(ids), [0.0] * len(ids)
    for nth in range(len(turns) + 1):
        if nth:
            seen_now = turns[nth - 1]
            text = chat.observe("<image>" * len(seen_now) + f"seen {nth}", seen_now)
            text = text if ids[-1] in chat.end_ids else (chat.end_ids[0], *text)
            ids, mask, logprobs = ids + list(text), mask + [0] * len(text), logprobs + [0.0] * len(text)
            shown += seen_now
        done = await policy.complete(Request(tuple(ids), tuple(shown), TOKENS, sampling, nth))
        ids, mask = ids + list(done.token_ids), mask + [1] * len(done.token_ids)
        logprobs += done.logprobs
    return TrainRow(conversation.name, tuple(ids), tuple(mask), tuple(shown), tuple(logprobs))


def _compared(sampled: SampledRow, known: Sequence[float], family: Family, view: View) -> EngineAgreement:
    row = sampled.row
    logprobs = [value for value, m in zip(row.logprobs or (), row.mask, strict=True) if m]
    gaps = np.array(known) - np.array(logprobs)
    ours = seen(row.token_ids, row.images, family, view)
    return EngineAgreement(
        name=row.id,
        images=len(row.images),
        tokens=len(gaps),
        gap=float(np.abs(gaps).max()),  # not a number where one is not
        kl=float(np.mean(np.exp(gaps) - 1 - gaps)),
        differs=tuple(sampled.reading.differences(ours)),
    )
