"""Policy on transformers' forward pass: batched, token ids in, token ids and log-probabilities out.

The sampling loop is ours because the library's gives neither a seed per sequence nor the log-probabilities of exactly
the ids it returns; both are needed for exact resume and for the importance ratio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from vtcli.engines.drawing import Distributions, distributions, draw, uniforms
from vtcli.engines.inputs import EngineInput, collate, seen
from vtcli.engines.learner import attention
from vtcli.engines.vllm.forms import same_tensors
from vtcli.errors import EngineError, InputError
from vtcli.families.family import Batch, Family
from vtcli.protocols import Chat, Request, View
from vtcli.rollout.clock import Clock
from vtcli.rollout.spans import SpanReader
from vtcli.rollout.threads import compute
from vtcli.schema import Completion
from vtcli.store import image_work


class _Roomy(DynamicLayer):
    """Cache layer with room to grow. The library's layer copies the whole cache for every new token, which takes a
    third of sampling's time at the tiny scale. Attention gets the same values in the same order, so results are
    bitwise equal."""

    def __init__(self, room: int, **given: Any) -> None:
        super().__init__(**given)
        self.room = room  # tokens to come after the first update
        self._buffers: tuple[Tensor, Tensor] | None = None  # each (B, heads, capacity, head size)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._buffers is None or end > self._buffers[0].shape[-2]:
            self._buffers = self._grown(key_states, value_states, start, end)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self._buffers is None:
            return
        end = self.get_seq_length()
        self._buffers = cast(tuple[Tensor, Tensor], tuple(buffer[beam_idx] for buffer in self._buffers))
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)

    def _grown(self, keys: Tensor, values: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        made: list[Tensor] = []
        for states, old in ((keys, self.keys), (values, self.values)):
            buffer = states.new_empty((*states.shape[:2], end + self.room, states.shape[-1]))
            if start:
                buffer[:, :, :start] = cast(Tensor, old)
            made.append(buffer)
        return made[0], made[1]


def cache(room: int) -> Cache:
    """An empty cache for a prompt of any length and ``room`` tokens after it; more still fit, at the cost of a copy."""
    return Cache(layer_class_to_replicate=cast(Any, partial(_Roomy, room)))


GIVEN_UP_S = 600.0
"""Limit on the time for which a weight update waits for the current token of abandoned requests."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(family: Family, dtype: str = "float32", device: str | None = "cpu") -> Any:
    """The model of the family's folder. ``device`` None: a GPU where torch has one.

    Raises:
        InputError: no such model here.
    """
    try:
        model = family.load(DTYPES[dtype])
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        text = str(error).strip() or type(error).__name__
        if isinstance(error, RuntimeError) and "alloc" in text:
            raise  # memory that ran out says nothing about the folder
        told = next((line.strip() for line in text.splitlines() if "size mismatch" in line), text.splitlines()[0])
        raise InputError(
            f"cannot load a {family.name} model from {family.folder}: {told[:300]} Expected config.json and weights "
            "that go with it, whole: copy or download the folder again."
        ) from error
    model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    return attention.use(model) if family.packs else model


@dataclass
class HfPolicy:
    """Completions from a model in this process. Requests that wait together are sampled together. The thread that
    waits for the event loop samples them (``rollout.threads.compute``), otherwise a thread of the policy. Meanwhile the
    event loop serves tools and judges."""

    model: Any
    family: Family
    view: View
    version: int = 0
    max_batch: int = 256
    clock: Clock = field(default_factory=Clock)  # runs while it computes
    cache_tokens: int | None = None  # its cache grows with each batch
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "hf"))
    _sampled: Sequence[asyncio.Future[Completion]] = ()
    _waiting: list[tuple[Request, asyncio.Future[Completion]]] = field(default_factory=list)  # type: ignore[type-arg]
    _drainer: asyncio.Task[None] | None = None

    async def complete(self, request: Request) -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._drainer is None or self._drainer.done():
            self._drainer = asyncio.get_running_loop().create_task(self._drain())
        return await future

    def sleep(self) -> None:
        """Does nothing: weights and caches of this engine stay where they are."""

    def wake(self) -> None:
        """Does nothing, as ``sleep``."""

    def update(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Takes over weights by name.

        Raises:
            InputError: the names or shapes differ from the model's; nothing is changed.
            EngineError: requests are still open.
        """
        waited_for = [future for future in (*self._sampled, *(f for _, f in self._waiting)) if not future.done()]
        if waited_for:
            raise EngineError(
                f"{len(waited_for)} requests are open during a weight update: their tokens would be mixed"
            )
        self._thread.submit(int).result(GIVEN_UP_S)  # what was given up ends at its next token
        own = self.model.state_dict()
        same_tensors(weights, {name: tuple(value.shape) for name, value in own.items()})
        with torch.no_grad():
            for name, value in weights.items():
                # In place, because the module's parameters may be tied to each other.
                own[name].copy_(value)
        self.version = version

    def seen(self, request: Request) -> EngineInput:
        """Engine input made of a prompt: ids, pixels, positions."""
        return seen(request.token_ids, request.images, self.family, self.view)

    def close(self) -> None:
        """Ends the policy's thread. Safe to call twice."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _drain(self) -> None:
        while self._waiting:
            seen = -1
            # Wait until no rollout can add a request without an answer.
            while seen != len(self._waiting) or image_work.busy():
                seen = len(self._waiting)
                await image_work.settled()  # a tool's answer begins a request, and batches decide the last bits
                # A rollout's task takes a few turns of the loop from an answer to its next request.
                for _ in range(8):
                    await asyncio.sleep(0)
            # Sorted by length and seed: little padding, and the same batches whenever the run is repeated.
            waiting = sorted(
                ((r, f) for r, f in self._waiting if not f.done()),
                key=lambda item: (len(item[0].token_ids), item[0].seed),
            )
            batch, self._waiting = waiting[: self.max_batch], waiting[self.max_batch :]
            if batch:
                await self._sample([request for request, _ in batch], [future for _, future in batch])

    async def _sample(self, requests: list[Request], futures: list[asyncio.Future[Completion]]) -> None:
        self._sampled = futures
        try:
            work = partial(self.generate, requests, lambda i: futures[i].done())
            done = await compute(work, self._thread)
        except Exception as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        finally:
            self._sampled = ()
        for future, completion in zip(futures, done, strict=True):
            if not future.done():
                future.set_result(completion)

    def generate(self, requests: Sequence[Request], given_up: Callable[[int], bool] | None = None) -> list[Completion]:
        """Samples every request to its end marker, stop string or token limit, or until the i-th is ``given_up``."""
        with self.clock.during("generate"), torch.inference_mode():
            return self._generate(requests, given_up or (lambda _: False))

    def _generate(self, requests: Sequence[Request], given_up: Callable[[int], bool]) -> list[Completion]:
        keys = [(r.token_ids, tuple(ref.view for ref in r.images)) for r in requests]
        prompts = {key: (r.token_ids, r.images) for key, r in zip(keys, requests, strict=True)}
        batch = collate(list(prompts.values()), self.family, self.model.device)
        sampler = _Sampler(requests, self.family.chat, self.model.device)
        cache = self._cache(min(max(r.max_tokens for r in requests), 256))
        logits = self._forward(cache, batch, batch.attention)
        attention, at = batch.attention, batch.next_position
        if len(prompts) < len(requests):  # a group asks the same question several times: it is read once
            place = {key: i for i, key in enumerate(prompts)}
            copies: Any = torch.tensor([place[key] for key in keys], device=self.model.device)
            cache.reorder_cache(copies)  # any rows: layers of linear attention can select in no other way
            logits, attention, at = logits[copies], attention[copies], at[copies]
        while True:
            tokens, alive = sampler.take(logits, given_up)
            if not alive.any():
                return sampler.completions()
            if int(alive.sum()) <= 0.75 * len(alive):  # drop finished rows from the cache
                keep: Any = torch.from_numpy(np.flatnonzero(alive)).to(self.model.device)
                cache.reorder_cache(keep)
                tokens, at, attention = tokens[keep], at[keep], attention[keep]
                sampler.keep(alive)
            new = Batch(tokens[:, None], at[None, :, None].expand(len(batch.positions), -1, 1), (), ())
            attention = torch.cat([attention, attention.new_ones((len(attention), 1))], dim=1)
            at = at + 1
            logits = self._forward(cache, new, attention)

    def _cache(self, room: int) -> Cache:
        return cache(room) if self.family.packs else DynamicCache(config=self.model.config)

    def _forward(self, cache: Cache, batch: Batch, attention: Tensor) -> Tensor:
        """Logits (B, vocabulary) of the next token, in fp32."""
        hidden = self.family.decoder(self.model)(
            **self.family.embed(self.model, batch, self.view),
            position_ids=batch.position_ids,
            attention_mask=attention,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return self.family.head(self.model)(hidden[:, -1]).float()


class _Sampler:
    """Tokens and log-probabilities of a batch, row by row, until each is done."""

    def __init__(self, requests: Sequence[Request], chat: Chat, device: Any) -> None:
        self.requests, self.chat = requests, chat
        self.rows = np.arange(len(requests))  # which request each row of the batch is
        self.uniforms = [uniforms(r.seed, r.max_tokens) for r in requests]
        self.ids: list[list[int]] = [[] for _ in requests]
        self.logprobs: list[list[float]] = [[] for _ in requests]
        self.done = np.zeros(len(requests), dtype=bool)
        self.stopped = np.zeros(len(requests), dtype=bool)
        self.end_ids = set(chat.end_ids)
        self.banned = torch.tensor(chat.banned_ids, device=device)
        self.readers = [SpanReader(r.sampling, chat.piece) if r.sampling.spans else None for r in requests]

    def take(
        self, logits: Tensor, given_up: Callable[[int], bool]
    ) -> tuple[Tensor, np.ndarray[Any, np.dtype[np.bool_]]]:
        """One token for every row (rows, vocabulary) → ids (rows,) and which rows go on."""
        steps = [min(len(self.ids[i]), len(self.uniforms[i]) - 1) for i in self.rows]
        u = torch.tensor([self.uniforms[i][s] for i, s in zip(self.rows, steps, strict=True)], device=logits.device)
        tokens, taken = draw(logits, self._distributions(logits.device), u, self.banned)
        for row, (token, logprob) in enumerate(zip(tokens.tolist(), taken.tolist(), strict=True)):
            self._append(int(self.rows[row]), token, logprob)
            self.done[self.rows[row]] |= given_up(int(self.rows[row]))
        return tokens, ~self.done[self.rows]

    def _distributions(self, device: Any) -> Distributions:
        rows = self.rows.tolist()
        samplings = [self.requests[i].sampling for i in rows]
        readers = [self.readers[i] for i in rows]
        now = [s.temperature if r is None else r.temperature for s, r in zip(samplings, readers, strict=True)]
        return distributions(samplings, now, device)

    def _append(self, i: int, token: int, logprob: float) -> None:
        # Kept in the batch until ``keep`` drops the row: its further tokens are dropped.
        if self.done[i]:
            return
        self.ids[i].append(token)
        self.logprobs[i].append(logprob)
        if (reader := self.readers[i]) is not None:
            reader.read((token,))
        self.stopped[i] = token in self.end_ids or self.chat.completes(self.ids[i], self.requests[i].stop)
        self.done[i] = self.stopped[i] or len(self.ids[i]) >= self.requests[i].max_tokens

    def keep(self, alive: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        self.rows = self.rows[alive]

    def completions(self) -> list[Completion]:
        return [
            Completion(tuple(ids), tuple(logprobs), "stop" if stopped else "length")
            for ids, logprobs, stopped in zip(self.ids, self.logprobs, self.stopped, strict=True)
        ]
