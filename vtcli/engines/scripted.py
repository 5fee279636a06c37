"""A policy that plays a script: the best possible tool use, computed from a sample's ground truth.

It bounds what any policy can reach on a data set, and exercises a pipeline without weights.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from vtcli.data.generators.item import NO_PIXELS, Item
from vtcli.data.teachers.plans import SCRIPTS, known_script, plan
from vtcli.data.teachers.scripted import Teacher
from vtcli.envs.card import EnvCard
from vtcli.errors import ConfigError
from vtcli.protocols import Chat, Images, Policy, Request
from vtcli.schema import Completion, Sample

BEST = Teacher(skill=1.0, direct=0.0, index_skill=1.0, margin=(0.0, 0.2))
"""Every call right, every answer read off what it brings back."""


class ScriptedPolicy:
    """Plays ``turns`` one after the other, with probability one; one instance serves one rollout."""

    version = 0

    def __init__(self, chat: Chat, turns: Sequence[str]) -> None:
        self._chat = chat
        self._turns = list(turns)
        self._said: tuple[int, ...] = ()  # of the turn under way,
        self._rest: tuple[int, ...] = ()  # and what of it was cut off

    def has_call_for(self, request: Request) -> bool:
        """True if what the request gets is no part of the last turn, the answer."""
        return len(self._turns) > (0 if self._goes_on(request) else 1)

    def _goes_on(self, request: Request) -> bool:
        """True if the request asks for the rest of the turn under way, which was cut off."""
        return bool(self._rest) and request.token_ids[-len(self._said) :] == self._said

    async def complete(self, request: Request) -> Completion:
        """The next turn, cut at the request's limit or after the token that completes a stop string; past the script
        an empty turn. A request that ends with the last text goes on with the rest of that turn."""
        whole = (
            self._rest if self._goes_on(request) else self._chat.encode_turn(self._turns.pop(0) if self._turns else "")
        )
        end = self._stop(whole, request.stop)
        ids = whole[: min(end, request.max_tokens)]
        self._said, self._rest = ids, whole[len(ids) :]
        return Completion(ids, (0.0,) * len(ids), "length" if end > request.max_tokens else "stop")

    def _stop(self, ids: Sequence[int], stop: Sequence[str]) -> int:
        """Number of ids to emit: all, or as many as complete one of the stop strings."""

        def said(count: int) -> bool:
            text = self._chat.decode(ids[:count]).text
            return any(string in text for string in stop)

        return bisect_left(range(len(ids)), True, key=said)


class OraclePolicy:
    """Solves every sample perfectly, see ``oracle``; ``samples`` by the seeds of their rollouts."""

    version = 0

    def __init__(self, chat: Chat, images: Images, seed: int, card: EnvCard, samples: Mapping[int, Sample]) -> None:
        self._open = partial(oracle, chat, images, seed, card)
        self._samples = samples
        self._scripts: dict[int, ScriptedPolicy] = {}

    def of(self, request: Request) -> ScriptedPolicy:
        """Returns the script of a request's rollout."""
        name = request.rollout
        if name not in self._scripts:
            self._scripts[name] = self._open(self._samples[name])
        return self._scripts[name]

    async def complete(self, request: Request) -> Completion:
        return await self.of(request).complete(request)


class GuidedPolicy:
    """Makes the oracle's calls, and lets the model go on from what these bring back: how often would the model be right
    if every call were?"""

    def __init__(self, model: Policy, script: OraclePolicy) -> None:
        self._model = model
        self._script = script

    @property
    def version(self) -> int:
        return self._model.version

    async def complete(self, request: Request) -> Completion:
        script = self._script.of(request)
        return await (script if script.has_call_for(request) else self._model).complete(request)


def require_scripts(samples: Iterable[Sample], source: str) -> None:
    """Raises ``ConfigError`` if the oracle cannot play some tasks of ``source``, an artifact's reference."""
    unknown = sorted({sample.task for sample in samples if known_script(sample.task, sample.truth) is None})
    if unknown:
        raise ConfigError(
            f"eval.policy=oracle and oracle_calls play from scripts, and {source} has tasks without one: "
            f"{', '.join(unknown)}. Tasks with a script are {', '.join(SCRIPTS)}. Evaluate a model instead "
            "(eval.policy=model), or data of these tasks alone."
        )


def oracle(chat: Chat, images: Images, seed: int, card: EnvCard, sample: Sample) -> ScriptedPolicy:
    """A policy that solves ``sample`` perfectly; ``images`` has the sample's full pixels. ``card``: the
    environment that its turns are written for.

    Raises:
        ConfigError: a task that has no script, or an environment that does not say how its turns are written.
    """
    ref, answer = next(iter(sample.images), None), sample.answer  # a video has none
    item = Item(
        id=sample.id,
        task=sample.task,
        pixels=images.full(ref) if ref else NO_PIXELS,
        question=sample.question,
        tool_question=sample.question,
        answer=answer,
        tool_answer=answer,
        truth=sample.truth,
        tools=sample.tools,
    )
    scale = card.scale((ref.width, ref.height), (ref.view_width, ref.view_height)) if ref else (1.0, 1.0)
    return ScriptedPolicy(chat, plan(item, np.random.default_rng(seed), sample.form, BEST, scale, card.spoken).turns)
