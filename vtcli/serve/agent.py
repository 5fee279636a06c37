"""Rollouts for clients, with the loop, worlds and policy of training and evaluation; at most ``Bounds.active`` at once.

A client that disconnects cancels its task, which closes its world and withdraws its request from the engine.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from vtcli.config.bounds import at_least
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError, InputError
from vtcli.protocols import Chat, DecodedTurn, Env, HasSyntax, HasThoughts, Policy, Sampling, Syntax
from vtcli.rollout.loop import GroupRequest, Limits, RolloutRequest, rollout
from vtcli.schema import ImageRef, Observation, Sample, Stop, Trajectory
from vtcli.serve import answers
from vtcli.serve.history import History, LiveCard, ServedPictures
from vtcli.serve.metrics import Metrics
from vtcli.serve.requests import ChatRequest, RequestError, RequestLimits
from vtcli.store import images
from vtcli.store.image_work import in_thread
from vtcli.store.leases import Lease, LeasedImages

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """One turn of a choice's reasoning, as it comes; ``step`` has the tool calls if the turn is the world's.
    ``html`` is the turn as the report shows it, for a client that asks for it."""

    index: int
    text: str
    step: Mapping[str, Any] | None = None
    html: str | None = None


Tell = Callable[[Piece], None]

SHARED_PIXELS = 4_000_000
"""Images of up to this many pixels are stored by ``in_thread``, for which the engine ``hf`` waits, so that questions
which arrive together are sampled as one batch."""

SEED_BITS = 53
"""Bits of a drawn seed. Clients receive it as a JSON number, which JavaScript reads as a double."""


@dataclass(frozen=True, slots=True)
class ChatQuestion:
    """A request whose images are on disk, with the rollouts that answer it."""

    asked: ChatRequest
    sample: Sample
    seed: int  # that of ``vtcli eval`` with as many ``group_size``
    drawn: tuple[RolloutRequest, ...]  # one a choice
    deadline: float  # of the event loop's clock; rollouts end then as they stand
    card: LiveCard | None  # None: the client wants no HTML


@dataclass(frozen=True)
class Bounds:
    """Rollouts at a time, and how many more may wait; beyond that clients get a 429."""

    active: int = 64
    queue: int = 256

    def __post_init__(self) -> None:
        at_least(1, self, "active")
        at_least(0, self, "queue")


@dataclass
class Room:
    """Room for the rollouts of one request, of which ``left`` are not over, and the images that it sent."""

    agent: ChatAgent
    left: int
    images: Lease


@dataclass
class ChatAgent:
    """Answers requests."""

    policy: Policy
    chat: Chat
    worlds: Worlds
    images: LeasedImages
    limits: Limits
    bounds: Bounds
    temperature: float
    history: History
    metrics: Metrics
    stored: Callable[[Trajectory], Trajectory] = lambda found: found  # the form in which History keeps a trajectory
    has_logprobs: bool = True  # False: the policy is an endpoint, whose tokens are estimates
    rolling: int = 0  # rollouts admitted and not yet over
    running: int = 0  # of them, those that do not wait
    # Starts at one second, because the first Retry-After needs a mean before any rollout has ended.
    _took: deque[float] = field(default_factory=lambda: deque([1.0], maxlen=64))  # seconds of the last rollouts

    def __post_init__(self) -> None:
        self._active = asyncio.Semaphore(self.bounds.active)
        self.metrics.watch(lambda: self.running, lambda: self.rolling - self.running)

    @contextmanager
    def room(self, count: int) -> Generator[Room]:
        """Keeps room for ``count`` rollouts. Each gives its own back when it is over, the block's end gives the rest.

        Raises:
            RequestError: they would not fit into the queue (429).
        """
        # Counted here and not at the semaphore, because a request of n rollouts is admitted whole or not at all.
        if self.rolling + count > self.bounds.active + self.bounds.queue:
            raise self.too_many(f"{self.rolling} rollouts are under way or wait")
        room = Room(self, count, self.images.lease())
        self.rolling += count
        try:
            yield room
        finally:
            self.rolling -= room.left
            room.images.release()

    @property
    def retry_after_s(self) -> int:
        """Seconds for a 429's ``Retry-After``: how long the rollouts ahead should take, between 1 and 60."""
        mean = sum(self._took) / len(self._took)
        return round(min(60, max(1, self.rolling * mean / self.bounds.active)))

    def too_many(self, why: str) -> RequestError:
        """The refusal of a request for which there is no room now."""
        return RequestError(429, f"{why}; come again", "rate_limit_exceeded", retry_after_s=self.retry_after_s)

    async def question(self, asked: ChatRequest, limits: RequestLimits, room: Room, deadline: float) -> ChatQuestion:
        """The question as the rollout loop takes it. Raises ``RequestError`` for an image that cannot be used."""
        if asked.logprobs and not self.has_logprobs:
            raise RequestError(400, "logprobs: an endpoint answers here", "unsupported_value", "logprobs")
        pixels = await in_thread(partial(_pixels, asked, limits))
        keep = partial(_keep, asked, room.images)
        refs = await (in_thread(keep) if pixels <= SHARED_PIXELS else asyncio.to_thread(keep))
        # A client that writes out the default temperature gets the same sample id, so the same rollouts.
        own = replace(asked, temperature=None) if asked.temperature == self.temperature else asked
        sample = self.worlds.offer(Sample(own.id, "served", "answer", "served", asked.question, "", refs, ()))
        seed = secrets.randbits(SEED_BITS) if asked.seed is None else asked.seed
        temperature = self.temperature if asked.temperature is None else asked.temperature
        drawn = GroupRequest(sample, asked.n, seed, Sampling(temperature, asked.top_k, asked.top_p, asked.min_p))
        card = LiveCard(sample, ServedPictures(self.images.held)) if asked.include_cards else None
        # The encoded images are on disk now; their bytes would hold up to max_body_mb for each waiting request.
        return ChatQuestion(replace(asked, images=()), sample, seed, drawn.members, deadline, card)

    async def answer(self, question: ChatQuestion, tell: Tell, room: Room) -> list[answers.Answer]:
        """One answer a choice.

        Raises:
            RequestError: the environment cannot take the question (400), a rollout broke (500), or none could begin
                before the deadline (429).
            VtcliError: the engine is gone.
        """

        def over(member: asyncio.Task[Trajectory]) -> None:  # a callback, because a task may be cancelled unstarted
            del member
            self.rolling -= 1
            room.left -= 1

        # Tasks and not a TaskGroup, which would wrap one member's error in an ExceptionGroup.
        members = [asyncio.create_task(self._member(question, i, tell)) for i in range(len(question.drawn))]
        for member in members:
            member.add_done_callback(over)
        try:
            found = await asyncio.gather(*members)
        except (InputError, ConfigError) as error:  # of this question; an engine's error goes on
            _require_disk(error)
            raise RequestError(400, f"the environment cannot take this question: {error}", None, "messages") from None
        finally:
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)  # until their worlds are closed
        # One broken member fails the request, because OpenAI's format has no way to report a choice that failed.
        if broken := [one for one in found if one.stop is Stop.BROKEN]:
            kinds = ", ".join(sorted({(one.error or "unknown").split(":")[0] for one in broken}))
            _log.error("%d of %d rollouts broke (%s); first: %s", len(broken), len(found), kinds, broken[0].id)
            raise RequestError(500, "the rollout broke; the server's log has the reason", "rollout_broken")
        # No turn at all means that the prompt alone fills the context: the client's mistake, not an empty answer.
        if all(one.stop is Stop.MAX_TOKENS and not one.turns for one in found):
            text = f"messages: with the prompt more than max_model_len={self.limits.max_tokens} tokens"
            raise RequestError(400, text, "context_length_exceeded", "messages")
        told = [answers.answer(one, question.asked, self.cut) for one in found]
        return [replace(one, logprobs=self._logprobs(one)) for one in told] if question.asked.logprobs else told

    async def _member(self, question: ChatQuestion, index: int, tell: Tell) -> Trajectory:
        """Makes one rollout. Cancelling it closes its world and frees its images and its request to the engine."""
        came, drawn, system = time.perf_counter(), question.drawn[index], question.asked.system
        try:
            async with asyncio.timeout_at(question.deadline):
                await self._active.acquire()
        except TimeoutError:
            raise self.too_many("no rollout could begin in time") from None
        try:
            begin = time.perf_counter()
            self.running += 1
            # A lease for this rollout, because its images outlive the request: History shows them until it drops them.
            lease = self.images.lease(drawn.sample.images)

            def open_env(sample: Sample) -> Env:
                return _WatchedEnv(self.worlds(sample, lease), system, partial(_tell, tell, index), question.card)

            try:
                found = await rollout(drawn, self.policy, self.chat, open_env, self.limits, question.deadline)
            except BaseException:
                lease.release()
                raise
            finally:
                self.running -= 1
        finally:
            self._active.release()
        now = time.perf_counter()
        self._took.append(now - begin)
        self.metrics.ended(found, answers.finish(found), begin - came, now - came)
        self.history.add(self.stored(found), lease)
        return found

    def cut(self, text: str, tokens: int) -> str:
        """The first so many tokens of a text."""
        ids = self._ids(text)
        return text if len(ids) <= tokens else self.chat.decode(ids[:tokens]).text

    def _logprobs(self, one: answers.Answer) -> list[dict[str, Any]]:
        """Returns log-probabilities of the last turn's tokens up to the content's end.

        ``bytes`` is None for a token that holds only part of a character.
        """
        turns = one.trajectory.policy_turns
        if not turns or not one.content:
            return []
        sampled = zip(turns[-1].token_ids, turns[-1].completion.logprobs, strict=True)
        spoken = [(token, logprob) for token, logprob in sampled if token not in self.chat.end_ids]
        ids = [token for token, _ in spoken]

        def length(count: int) -> int:
            return len(self.chat.decode(ids[:count]).text)

        # A part of a character is already U+FFFD: the last of the tokens that give this length completes it.
        count = bisect_right(range(len(ids) + 1), len(one.content), key=length) - 1
        count += length(count) < len(one.content)  # a cut within a token
        return [
            {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else [*text.encode()]}
            | {"top_logprobs": list[Any]()}
            for text, logprob in ((self.chat.piece(token), logprob) for token, logprob in spoken[:count])
        ]

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._ids(text))

    def _ids(self, text: str) -> Sequence[int]:
        end = self.chat.thought_end if isinstance(self.chat, HasThoughts) else None
        empty = 0 if end is None or end.tag in text else len(end.token_ids)  # a thinking model's turn begins with it
        return [i for i in self.chat.encode_turn(text) if i not in self.chat.end_ids][empty:]


def _pixels(request: ChatRequest, limits: RequestLimits) -> int:
    """Pixels of all images by their headers, before any is decoded."""
    pixels = 0
    for number, data in enumerate(request.images):
        try:
            width, height = images.size(data, f"{number}")
        except InputError as error:
            raise RequestError(400, str(error), "invalid_image", "messages") from None
        pixels += width * height
    if pixels > limits.max_pixels:
        what = f"the images have {pixels} pixels, at most {limits.max_pixels} are taken"
        raise RequestError(400, what, "invalid_image", "messages")
    return pixels


def _keep(request: ChatRequest, lease: Lease) -> tuple[ImageRef, ...]:
    try:
        for number, data in enumerate(request.images):
            images.check(data, f"{number}")  # a PNG that is its own view would be kept undecoded
        return tuple(lease.add_encoded(data, f"{number}") for number, data in enumerate(request.images))
    except InputError as error:
        _require_disk(error)
        raise RequestError(400, str(error), "invalid_image", "messages") from None


def _require_disk(error: BaseException) -> None:
    """Raises ``RequestError`` 500 if a disk error caused this one. The client gets no path; the log has it."""
    cause: BaseException | None = error
    # Only the operating system's errors have a number; Pillow raises OSError without one for a damaged image.
    while cause is not None and not (isinstance(cause, OSError) and cause.errno):  # Pillow's have no number
        cause = cause.__cause__
    if cause is not None:
        _log.error("%s", error)
        raise RequestError(500, "the server's disk is in trouble; its log has the reason", "disk") from None


def _tell(tell: Tell, index: int, text: str, html: str | None = None, step: Mapping[str, Any] | None = None) -> None:
    tell(Piece(index, text, step, html))


class _WatchedEnv:
    """A world that reports each turn as it comes, with the client's system text after the environment's."""

    def __init__(
        self,
        env: Env,
        system: str,
        tell: Callable[..., None],
        card: LiveCard | None,
    ) -> None:
        self._env, self._system, self._tell, self._card = env, system, tell, card
        self._turns = 0

    @property
    def syntax(self) -> Syntax:
        return self._env.syntax if isinstance(self._env, HasSyntax) else Syntax()

    async def reset(self) -> tuple[str, str]:
        system, question = await self._env.reset()
        return "\n\n".join(text for text in (system, self._system) if text), question

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        # Only turns with calls are streamed as reasoning: the last turn holds the answer, which ``max_tokens`` may cut.
        if turn.calls:
            self._tell(turn.text + "\n", self._card and self._card.policy(turn.text))
        observation = await self._env.step(turn, images)
        if observation is not None:
            # Policy and world alternate from turn 0, so the world's n-th turn (from 0) is number 2n + 1.
            number, shown = 2 * self._turns + 1, (*images, *observation.images)
            step = answers.step(number, observation, shown, len(images))
            html = self._card and self._card.world(images, observation)
            self._tell(answers.seen(observation), html, step)
        self._turns += 1
        return observation

    async def close(self) -> None:
        await self._env.close()
