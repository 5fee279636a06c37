"""Cost of a distillation, before anything is asked: from the length of the prompts, and the limits.

A trajectory of ``calls`` calls makes ``calls + 1`` requests. Each sends the prompt, and all turns and observations
before it, again. Let the prompt have P tokens, a turn A and an observation O. Then request number n (from 0) reads P +
n (A + O) tokens and writes A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vtcli.engines.openai.chat import TextChat
from vtcli.engines.openai.ledger import TokenUsage
from vtcli.engines.teachers.distil import Distillation
from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.schema import Sample

PROMPTS = 32
"""Prompts whose length is measured, evenly spread over the rows."""


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Tokens of one prompt, and those of its images among them."""

    tokens: int
    image_tokens: int


async def prompt_lengths(samples: Sequence[Sample], card: EnvCard, inputs: EnvInputs) -> list[PromptLength]:
    """The lengths of the prompts of samples as the environment opens them. No code is run."""
    chat, found = TextChat(), list[PromptLength]()
    for sample in samples:
        system, question = await card.open(sample, inputs).reset()
        pictures = sum(map(chat.image_tokens, sample.images))
        found.append(PromptLength(len(chat.prompt(system, question, sample.images)), pictures))
    return found


def trajectory(prompt: float, turn: float, observation: float, calls: float, room: float) -> TokenUsage:
    """Tokens of one trajectory with at most ``room`` tokens of context.

    >>> trajectory(100, 10, 20, 2, 1000)
    TokenUsage(input=390, output=30, requests=3, cached=0, estimated=0)
    """
    read = said = 0.0
    requests = 0
    while requests <= calls:
        here = prompt + requests * (turn + observation)
        if here >= room:
            break
        read, said, requests = read + here, said + min(turn, room - here), requests + 1
    return TokenUsage(round(read), round(said), requests)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The tokens of a whole distillation: the expected number, and the most that the limits allow."""

    rows: int
    tries: int
    expected: TokenUsage  # one try of every row
    most: TokenUsage  # every try of every row goes to its limits


def estimate(settings: Distillation, rows: int, prompts: Sequence[PromptLength]) -> CostEstimate:
    """The cost of ``rows`` rows whose prompts are like these."""
    mean = sum(p.tokens for p in prompts) / len(prompts)
    picture = sum(p.image_tokens for p in prompts) / len(prompts)
    limits, expect = settings.limits, settings.expect
    usual = min(expect.turn_tokens, limits.max_turn_tokens)
    one = trajectory(mean, usual, expect.observation_tokens + picture, expect.calls, limits.max_tokens)
    turn = min(limits.max_turn_tokens, limits.max_tokens)
    all_of_it = trajectory(mean, turn, expect.observation_tokens + picture, limits.max_turns, limits.max_tokens)
    return CostEstimate(rows, settings.tries, _times(one, rows), _times(all_of_it, rows * settings.tries))


def _times(usage: TokenUsage, count: int) -> TokenUsage:
    return TokenUsage(usage.input * count, usage.output * count, usage.requests * count)
