"""Policy on vLLM in this process: token ids in, token ids and log-probabilities out; requests come and go at any time.

The engine lives in one thread, which does one thing at a time: start, take requests, step, take weights. All
who wait for it wait in another thread and with a limit. Images are made ready in further threads (``rendering``).
Tokens are drawn by ``draw``, not by vLLM.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from vtcli.engines.inputs import EngineInput
from vtcli.engines.policies import Engine, Placement
from vtcli.engines.vllm import compat
from vtcli.engines.vllm.buckets import fill, update_info
from vtcli.engines.vllm.forms import FINISH, SLEEPING, misread, same_tensors, sampling
from vtcli.engines.vllm.queueing import StartOrder, WorkLimit
from vtcli.engines.vllm.rendering import Renderer
from vtcli.engines.vllm.seen import from_worker
from vtcli.engines.vllm.start import arguments, load, require_gpu, start, tensors
from vtcli.errors import EngineError, InputError
from vtcli.families.family import Family
from vtcli.protocols import Request, View
from vtcli.rollout.clock import Clock
from vtcli.rollout.loop import Limits
from vtcli.schema import Completion

T = TypeVar("T")

JOBS = 16
"""Requests that are taken between two steps, at most: open requests go on meanwhile."""


@dataclass
class _OpenRequest:
    """A request that the engine is at work on."""

    request: Request
    answer: Future[Completion]
    inner: str = ""  # its name inside vLLM
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])


class VllmPolicy:
    """``complete`` may be called for any number of requests at a time; vLLM batches the open ones at every step."""

    def __init__(self, engine: Engine, family: Family, view: View, limits: Limits, place: Placement) -> None:
        self.version = 0
        self.clock = Clock()  # runs while vLLM reads prompts and samples
        self.family, self.view, self.options = family, view, engine
        require_gpu(engine)  # before an import of half a minute
        self._asleep = frozenset[str]()  # vLLM's tags of the memory that was given up
        self._vllm = load()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._open: dict[str, _OpenRequest] = {}
        self._asked: set[str] = set()  # requests with a waiting caller, also while their images are made ready
        self._count = self._looks = 0
        self._order, self._limit = StartOrder(), WorkLimit()
        self._broken: BaseException | None = None
        self._doing = "starting"
        # One thread alone touches the engine, which is not made for several; event loops never wait for a step of it.
        self._thread = threading.Thread(target=self._serve, name="vllm", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        given = arguments(engine, family, limits, place)
        self._engine: Any = None
        self._names = tensors(family)
        self._engine = self._wait(lambda: start(given), "vLLM's start", engine.start_timeout_s)
        self._renderer = Renderer(self._engine.renderer, family, view, self.clock)

    @property
    def cache_tokens(self) -> int:
        """Tokens whose keys and values fit into the blocks that vLLM has after its start."""
        return int(self._engine.vllm_config.cache_config.kv_cache_size_tokens)

    async def complete(self, request: Request) -> Completion:
        """One completion.

        Raises:
            EngineError: the engine has failed, worked at it for ``engine.timeout_s`` or did nothing for as long.
            InputError: placeholders and images disagree, or vLLM read the prompt as something else.
        """
        self.family.chat.check_images(request.token_ids, request.images)
        self._require_awake()
        state = _OpenRequest(request, _future())
        self._count += 1
        name = str(self._count)
        self._asked.add(name)
        self._limit.open(name)
        limit, answer = self.options.timeout_s, asyncio.ensure_future(self._answer(name, state))
        try:
            # The limit counts work on this request: a long queue that moves fails none, one that stands still does.
            while (left := limit - self._limit.waited(name)) > 0:
                await asyncio.wait({answer}, timeout=left)
                if answer.done():
                    return answer.result()
            work = "it worked at it" if self._limit.works(name) else "it is in the queue, which did not move"
            raise EngineError(
                f"no completion from vLLM within engine.timeout_s={limit:g} for a prompt of {len(request.token_ids)} "
                f"tokens and {len(request.images)} images: {work}, {len(state.ids)} of {request.max_tokens} made; "
                f"{len(self._open)} requests are open, the engine is {self._doing}"
            )
        finally:
            self._asked.discard(name)
            self._limit.close(name)
            answer.cancel()
            if not state.answer.done():  # abandoned: given up, or the rollout was cancelled
                self._submit(lambda: self._drop(name))

    async def _answer(self, name: str, state: _OpenRequest) -> Completion:
        # An image that vLLM has is sent by name alone. Where its cache has dropped it since, all are sent once more.
        for attempt in (1, 2):
            try:
                prompt = await self._renderer.ready(state.request)
            except Exception as error:
                raise _refused(error) from error
            self._submit(lambda prompt=prompt: self._add(name, state, prompt))
            try:
                return await asyncio.wrap_future(state.answer)
            except _DroppedImages as error:
                if attempt == 2:
                    raise _refused(error) from error
                self._renderer.drop(error.images)
                state.answer = _future()
        raise AssertionError("the second attempt sends all images")

    def update(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Takes over weights by their Hugging Face names, in place, and forgets everything computed with the old ones.

        Raises:
            InputError: names or shapes differ from the model's; nothing is changed.
            EngineError: requests are still open, or it took longer than ``engine.timeout_s``.
        """
        same_tensors(weights, self._names)
        passing = _WeightIterator(self.family.vllm.weights(weights))
        try:
            self._wait(lambda: self._take(passing), f"the weight update to version {version}", self.options.timeout_s)
        except EngineError as error:
            raise EngineError(f"{error}{passing.where()}") from error
        self.version = version

    def sleep(self) -> None:
        """Gives up the cache, and the weights by ``engine.sleep``.

        Raises:
            EngineError: requests are still open, or it took longer than ``engine.timeout_s``.
        """
        self._wait(self._fall_asleep, "vLLM's sleep", self.options.timeout_s)

    def wake(self) -> None:
        """Takes back what ``sleep`` gave up.

        Raises:
            EngineError: at level 2 the weights did not come, or it took longer than ``engine.timeout_s``.
        """
        self._wait(self._wake, "vLLM's awakening", self.options.timeout_s)

    def seen(self, request: Request) -> EngineInput:
        """Reads vLLM's input for a prompt: ids, pixels as its vision tower gets them, M-RoPE positions.

        Raises:
            EngineError: it does not answer within ``engine.timeout_s``.
        """
        self._require_awake()
        return self._wait(lambda: self._look(request), "vLLM's reading of a prompt", self.options.timeout_s)

    def close(self) -> None:
        """Ends the engine's thread; requests that are open fail. Safe to call twice."""
        atexit.unregister(self.close)
        self._jobs.put(None)
        self._thread.join(timeout=30)
        if hasattr(self, "_renderer"):
            self._renderer.close()

    # -- in the engine's thread ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        taken = 0
        while True:
            busy = bool(self._open)
            self._doing = "sampling" if busy else "idle"
            try:
                # Without this bound a flood of new requests would keep those that are open from their next token.
                if busy and taken == JOBS:
                    raise queue.Empty
                job = self._jobs.get(block=not busy)
            except queue.Empty:
                self._step()
                taken = 0
                continue
            if job is None:
                break
            job()
            taken += 1
        self._fail(EngineError("vLLM was closed while requests were open"))
        if self._engine is not None:  # not the engine's own shutdown, which ends the learner's process group as well
            self._engine.model_executor.shutdown()

    def _step(self) -> None:
        try:
            with self.clock.during("generate"):
                outputs = self._engine.step()
            inner = {running.request_id for running in compat.running(self._engine)}
            self._limit.computes({name for name, state in self._open.items() if state.inner in inner})
            for output in outputs:
                self._deliver(output)
        except Exception as error:
            self._broken = error
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        for state in self._open.values():
            problem = EngineError(f"vLLM failed while sampling: {type(error).__name__}: {str(error)[:500]}")
            problem.__cause__ = error
            state.answer.set_exception(problem)
        self._open.clear()

    def _add(self, name: str, state: _OpenRequest, prompt: Any) -> None:
        if self._broken is not None:
            problem = EngineError(f"vLLM has failed before: {type(self._broken).__name__}: {str(self._broken)[:500]}")
            state.answer.set_exception(problem)
            return
        request = state.request
        try:
            with self.clock.during("generate"):
                place = self._order.of(request.rollout)
                state.inner = self._engine.add_request(name, prompt, self._sampling(request), priority=place)
        except Exception as error:  # this request's fault: the engine goes on
            images = getattr(error, "mm_hashes", None)  # of vLLM's MultiModalCacheMissError
            if images is not None:
                compat.forget(self._engine, name)
            state.answer.set_exception(_refused(error) if images is None else _DroppedImages(images))
            return
        self._open[name] = state

    def _deliver(self, output: Any) -> None:
        state = self._open.get(output.request_id)
        if state is None:  # dropped meanwhile
            return
        said, request = output.outputs[0], state.request
        # vLLM expands images by a processor of its own. Other ids would mean other positions than the learner's.
        if not state.ids and tuple(output.prompt_token_ids) != request.token_ids:
            self._drop(output.request_id)
            state.answer.set_exception(InputError(misread(output.prompt_token_ids, request)))
            return
        finish = FINISH.get(said.finish_reason, "error") if output.finished else None
        for token, found in zip(said.token_ids, said.logprobs or (), strict=True):
            state.ids.append(token)
            state.logprobs.append(found[token].logprob)
            # Stop strings are sought here, by the code that other engines in process use: a turn ends at the same
            # token.
            if self.family.chat.completes(state.ids, request.stop):
                if not output.finished:
                    self._engine.abort_request([output.request_id])
                finish = "stop"
                break
        if finish is not None:
            del self._open[output.request_id]
            state.answer.set_result(Completion(tuple(state.ids), tuple(state.logprobs), finish))

    def _drop(self, name: str) -> None:
        if self._open.pop(name, None) is not None:
            self._engine.abort_request([name])

    def _take(self, passing: _WeightIterator) -> None:
        self._doing = "taking weights"
        if count := len(self._open.keys() | self._asked):
            raise EngineError(f"{count} requests are open during a weight update: their tokens would be mixed")
        self._drain()
        if "weights" in self._asleep:
            self._engine.wake_up(["weights"])  # the cache stays away: the learner's weights are still there
        _settle()
        if self.options.tensor_parallel > 1:
            self._send(passing)
        else:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(passing)})
        _settle()
        self._asleep -= {"weights"}  # only now: at level 2 memory that was woken holds anything
        if not self._engine.reset_prefix_cache():
            raise EngineError("vLLM did not give up its prefix cache: blocks of it are still in use")
        self._renderer.forget(self._engine)
        self._engine.reset_encoder_cache()  # else the next request that reuses an image fails

    def _fall_asleep(self) -> None:
        self._doing = "falling asleep"
        if count := len(self._open.keys() | self._asked):
            raise EngineError(f"{count} requests are open while vLLM shall sleep")
        self._drain()
        self._renderer.forget(self._engine)
        self._asleep = SLEEPING  # whatever fails from here on: nothing is sampled on memory that may be gone
        self._engine.sleep(self.options.sleep)

    def _wake(self) -> None:
        self._doing = "waking"
        if "weights" in self._asleep and self.options.sleep == 2:
            raise EngineError("engine.sleep=2 dropped the weights: update() before wake()")
        if self._asleep and not self._engine.wake_up(sorted(self._asleep)):
            raise EngineError("vLLM did not take all of its memory back")
        self._asleep = frozenset()

    def _drain(self) -> None:
        """Runs steps in flight to their end. With asynchronous scheduling one more step is planned when the last
        request ends, and it would read weights and write keys during the update. The public way, ``mode=abort`` of
        vLLM's sleep, waits for that step in servers only."""
        if self.options.async_scheduling:
            while compat.planned_steps(self._engine):
                self._engine.step()

    def _send(self, passing: _WeightIterator) -> None:
        """Sends weights to workers in processes of their own: in buckets, as to servers."""
        tell = self._engine.collective_rpc
        tell("vtcli_abandon")
        tell("start_weight_update")
        for bucket in fill(passing, self.options.bucket_mb * 2**20, None):
            tell("update_weights", kwargs={"update_info": update_info(bucket, len(passing.weights))})
            bucket.close()
        tell("finish_weight_update")

    def _look(self, request: Request) -> EngineInput:
        """A token is sampled after the prompt, and the worker reports what it read."""
        self._engine.collective_rpc("vtcli_watch_prompts", args=(self.family.vllm.pixels_key,))
        self._looks += 1
        name = f"look-{self._looks}"
        prompt = self._renderer.whole(request, name)  # read from the first token on, not from the cache
        self._engine.add_request(name, prompt, self._sampling(replace(request, max_tokens=1), name))
        done = False
        while not done:
            for output in self._engine.step():
                self._deliver(output)
                done = done or (output.request_id == name and output.finished)
        return from_worker(self._engine.collective_rpc("vtcli_look", args=(name,))[0], self.family.vllm)

    def _sampling(self, request: Request, look: str = "") -> Any:
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        # Token by token only if stop strings must be sought: otherwise one message at the end is enough.
        kind = kinds.DELTA if request.stop else kinds.FINAL_ONLY
        return self._vllm.SamplingParams(**sampling(request, self.family.chat, look), output_kind=kind)

    # -- in the callers' threads -----------------------------------------------------------------------------------

    def _require_awake(self) -> None:
        if self._asleep:
            raise EngineError("a completion was asked of vLLM while it sleeps: wake() it first")

    def _submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def _wait(self, work: Callable[[], T], what: str, limit_s: float) -> T:
        """The result of work in the engine's thread."""
        done: Future[T] = _future()

        def job() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._submit(job)
        try:
            return done.result(limit_s)
        except TimeoutError as error:
            raise EngineError(f"{what} took longer than {limit_s:g} s; the engine is {self._doing}") from error
        except (EngineError, InputError):
            raise
        except Exception as error:
            raise EngineError(f"{what} failed: {type(error).__name__}: {str(error)[:500]}") from error


class _WeightIterator:
    """Weights on their way, and which one is being taken."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights
        self.last: str | None = None
        self.count = 0

    def __iter__(self) -> Any:
        for name, value in self.weights.items():
            self.last, self.count = name, self.count + 1
            yield name, value.detach()

    def where(self) -> str:
        return f" (at tensor {self.count} of {len(self.weights)}: {self.last})" if self.last else ""


class _DroppedImages(Exception):
    """The engine has dropped images that it was only given by name; vLLM's names for them."""

    def __init__(self, images: Sequence[str]) -> None:
        super().__init__(f"vLLM has dropped {len(images)} images")
        self.images = images


def _refused(error: Exception) -> InputError:
    return InputError(f"vLLM refuses a prompt: {type(error).__name__}: {str(error)[:500]}")


def _settle() -> None:
    """Waits for the GPU: learner and engine work in threads of their own, whose streams do not wait for each other."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _future() -> Future[Any]:
    """A future that only the engine's thread ends."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
