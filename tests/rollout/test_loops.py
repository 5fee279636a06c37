"""Coroutines go on in a thread of their own, tensors are computed in the caller's, an interrupt ends both in order."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import tiny_model
from cases import each_case

from vtcli.engines.hf import HfPolicy
from vtcli.errors import EngineError
from vtcli.protocols import Request, Sampling
from vtcli.rollout.threads import EventLoop, compute

WORD = contextvars.ContextVar("WORD", default="none")


async def here() -> int:
    return threading.get_ident()


def test_work_is_done_by_the_thread_that_waits_and_coroutines_elsewhere() -> None:
    async def both() -> tuple[int, int]:
        return await here(), await compute(threading.get_ident)

    with EventLoop() as loop:
        (loop_thread, work_thread), again = loop.run(both()), loop.run(here())
    assert work_thread == threading.get_ident() != loop_thread
    assert again == loop_thread  # what belongs to a loop may live from one run to the next


def test_the_policy_samples_in_the_thread_that_waits() -> None:
    class Telling(HfPolicy):
        def generate(self, *args: Any) -> Any:
            threads.add(threading.get_ident())
            return super().generate(*args)

    threads = set[int]()
    chat = tiny_model.chat()
    policy = Telling(tiny_model.model(), tiny_model.family(), tiny_model.store().view)
    request = Request(chat.prompt("", "What?", ()), (), 3, Sampling(), 0)
    with EventLoop() as loop:
        apart = loop.run(policy.complete(request))
    assert threads == {threading.get_ident()}
    assert asyncio.run(policy.complete(request)) == apart
    assert len(threads) == 2  # a loop that nobody waits for: a thread of the policy's own
    policy.close()


def test_the_loop_goes_on_while_something_is_computed() -> None:
    ticked = threading.Event()

    async def tick() -> None:
        ticked.set()

    async def both() -> bool:
        ticking = asyncio.ensure_future(tick())
        done = await compute(lambda: ticked.wait(20))
        await ticking
        return done

    with EventLoop() as loop:
        assert loop.run(both())


def test_errors_of_both_reach_whom_they_concern() -> None:
    def fail() -> None:
        raise ValueError("no such tensor")

    async def handled() -> str:
        try:
            await compute(fail)
        except ValueError as error:
            return str(error)
        return ""

    async def unhandled() -> None:
        await compute(fail)

    with EventLoop() as loop:
        assert loop.run(handled()) == "no such tensor"
        with pytest.raises(ValueError, match="no such tensor"):
            loop.run(unhandled())
        assert loop.run(here())


def test_the_callers_context_is_the_coroutines() -> None:
    async def word() -> str:
        return WORD.get()

    token = WORD.set("said")
    with EventLoop() as loop:
        assert loop.run(word()) == "said"
    WORD.reset(token)


def test_work_that_nobody_waits_for_any_more_is_not_done() -> None:
    done: list[str] = []
    given_up = threading.Event()

    async def give_up() -> None:
        first = asyncio.ensure_future(compute(lambda: given_up.wait(20)))
        second = asyncio.ensure_future(compute(lambda: done.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        given_up.set()
        assert await first

    with EventLoop() as loop:
        loop.run(give_up())
        loop.run(asyncio.sleep(0))
    assert not done


@each_case("where", ["waiting", "computing"])
def test_an_interrupt_ends_the_coroutine_in_order_and_goes_on(where: str) -> None:
    ended: list[str] = []

    def interrupt_soon() -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    def interrupted() -> None:
        interrupt_soon()
        time.sleep(60)

    async def long() -> None:
        try:
            if where == "computing":
                await compute(interrupted)
            interrupt_soon()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append(await compute(lambda: "closed"))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    try:
        with EventLoop() as loop:
            begin = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                loop.run(long())
            assert ended == ["closed"]
            assert loop.run(here())
        assert time.monotonic() - begin < 30
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("is_asked", [False, True])
def test_an_interrupt_while_the_loop_is_asked_to_begin_is_not_waited_for(is_asked: bool) -> None:
    """A signal's handler raises before or after the loop has the coroutine. The loop stands still until it is asked to
    cancel."""
    begun = list[str]()
    gate = threading.Event()

    async def work() -> None:
        begun.append("begun")
        await asyncio.sleep(600)

    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with EventLoop() as loop:
        inner = loop.run(running())
        ask = inner.call_soon_threadsafe

        def cancelling(cancel: Callable[[], None]) -> None:
            inner.call_soon_threadsafe = ask
            ask(cancel)
            gate.set()

        def starting(start: Callable[[], None]) -> None:
            inner.call_soon_threadsafe = cancelling
            if is_asked:
                ask(gate.wait, 60)
                ask(start)
            raise KeyboardInterrupt

        inner.call_soon_threadsafe = starting
        with pytest.raises(KeyboardInterrupt):
            loop.run(work())
        assert loop.run(here())
    assert not begun  # cancelled before its first step


def test_a_loop_that_has_ended_refuses() -> None:
    with EventLoop() as loop:
        pass
    with pytest.raises(EngineError, match="not running"):
        loop.run(here())


def while_it_answers(loop: EventLoop) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        loop.run(here())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_ends_under_a_coroutine_is_not_waited_for() -> None:
    async def end_it() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

    with EventLoop() as loop:
        with pytest.raises(asyncio.CancelledError):
            loop.run(end_it())
        with pytest.raises(EngineError, match=r"not running|has ended"):
            while_it_answers(loop)


def test_what_is_open_at_the_end_is_cancelled() -> None:
    ended: list[bool] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    async def start() -> asyncio.Task[None]:
        return asyncio.ensure_future(forever())

    with EventLoop() as loop:
        task = loop.run(start())
        loop.run(asyncio.sleep(0))
    assert task.cancelled()
    assert ended


def test_a_signal_that_another_thread_receives_is_handled_soon() -> None:
    """It does not interrupt what the main thread waits for: neither work nor the next request for some."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for wait in (lambda: compute(lambda: time.sleep(60)), lambda: asyncio.sleep(60)):
            begun = time.monotonic()

            def tell() -> None:
                time.sleep(0.5)
                signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

            async def work(wait: Any = wait) -> None:
                await wait()

            with EventLoop() as loop:
                threading.Thread(target=tell).start()
                with pytest.raises(KeyboardInterrupt):
                    loop.run(work())
            assert time.monotonic() - begun < 20
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.set_wakeup_fd(-1) == -1
