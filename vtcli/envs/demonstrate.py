"""Plays a script in the real environment, so that a demonstration's observations are what a rollout would see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from vtcli.chat.calls import parse_answer, parse_calls
from vtcli.protocols import Decoded, Env
from vtcli.schema import ImageRef, Sample

Message = Mapping[str, str]


def play(env: Env, sample: Sample, turns: Sequence[str]) -> tuple[list[Message], list[ImageRef]]:
    """The messages of one episode in which the assistant says ``turns``, and the images that they show, in order.

    Raises ``ValueError`` for a turn that follows a final one: the script is wrong.
    """
    return asyncio.run(_play(env, sample, turns))


async def _play(env: Env, sample: Sample, turns: Sequence[str]) -> tuple[list[Message], list[ImageRef]]:
    system, question = await env.reset()
    images = list(sample.images)
    messages: list[Message] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "<image>" * len(images) + question},
    ]
    for i, text in enumerate(turns):
        messages.append({"role": "assistant", "content": text})
        seen = await env.step(Decoded(text, parse_calls(text), parse_answer(text)), images)
        if seen is None:
            if i + 1 < len(turns):
                raise ValueError(
                    f"turn {i} of the script for {sample.id} makes no call, but {len(turns)} turns are given"
                )
            break
        messages.append({"role": "tool", "content": seen.text})
        images += seen.images
    await env.close()
    return messages, images
