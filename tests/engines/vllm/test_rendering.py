"""Images on their way to vLLM: beside the engine's thread, once, and again when a cache has dropped them. Where vLLM is
not installed, nothing (``make test-vllm``)."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from wide_model import LIMITS, ask, changed, check, family, prompts, reference, requests, view

from vtcli.engines.policies import Engine, Placement, open_policy
from vtcli.engines.vllm.policy import JOBS, VllmPolicy
from vtcli.errors import EngineError, InputError
from vtcli.protocols import Request, Sampling

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vllm is not installed here; `make test-vllm` installs it and runs this",
)

seen: list[str] = []
"""Views that were read, in order."""


def counted(ref: Any) -> Any:
    seen.append(ref.view)
    return view(ref)


@pytest.fixture(scope="module")
def policy() -> Iterator[VllmPolicy]:
    opened = open_policy(Engine("vllm", cache_gib=0.25), family(), counted, LIMITS, Placement())
    assert isinstance(opened, VllmPolicy)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _nothing_known(policy: VllmPolicy) -> None:
    policy.update(reference().state_dict(), 0)
    seen.clear()


def about(name: str, **changes: Any) -> Request:
    ids, images = prompts()[name]
    return replace(Request(ids, images, 6, Sampling(), 3), **changes)


def test_open_requests_go_on_while_an_image_is_processed(policy: VllmPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor takes 200 ms or longer; the steps in between are counted."""
    engine, steps, during = policy._engine, [0], list[int]()
    step, apply = engine.step, engine.renderer.mm_processor.apply

    def counted_step() -> Any:
        steps[0] += 1
        return step()

    def slow(*given: Any) -> Any:
        before, until = steps[0], time.monotonic() + 0.2
        while time.monotonic() < until or (steps[0] < before + 3 and time.monotonic() < until + 30):
            time.sleep(0.01)
        during.append(steps[0] - before)
        return apply(*given)

    async def both() -> None:
        talking = asyncio.ensure_future(policy.complete(about("none", max_tokens=200)))
        while not steps[0]:
            await asyncio.sleep(0.01)
        await policy.complete(about("one"))
        await talking

    monkeypatch.setattr(engine, "step", counted_step)
    monkeypatch.setattr(engine.renderer.mm_processor, "apply", slow)
    asyncio.run(both())
    assert during[0] >= 3


def test_a_request_whose_images_are_made_ready_is_open(policy: VllmPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its tokens would be of other weights than it was asked with."""
    entered, go = threading.Event(), threading.Event()
    apply = policy._engine.renderer.mm_processor.apply

    def held(*given: Any) -> Any:
        entered.set()
        assert go.wait(60)
        return apply(*given)

    async def update_meanwhile() -> None:
        asked = asyncio.ensure_future(policy.complete(about("one")))
        assert await asyncio.to_thread(entered.wait, 60)
        with pytest.raises(EngineError, match="1 requests are open during a weight update"):
            policy.update(changed().state_dict(), 1)
        go.set()
        check(reference(), about("one"), await asked)

    monkeypatch.setattr(policy._engine.renderer.mm_processor, "apply", held)
    asyncio.run(update_meanwhile())
    assert policy.version == 0


def test_an_image_that_the_engine_has_is_not_read_again(policy: VllmPolicy) -> None:
    first = ask(policy, [about("turns")])
    assert sorted(seen) == sorted(ref.view for ref in about("turns").images)
    assert ask(policy, [about("turns")]) == first
    ask(policy, [about("one"), about("two")])
    assert len(seen) == 3  # all of them are in the first prompt
    policy.update(changed().state_dict(), 1)
    after = ask(policy, [about("turns")])
    assert len(seen) == 6
    check(changed(), about("turns"), after[0])


@pytest.mark.parametrize("side", ["processor", "engine"])
def test_an_image_that_a_cache_has_dropped_is_read_again(policy: VllmPolicy, side: str) -> None:
    request = about("turns")
    ask(policy, [request])
    if side == "processor":
        policy._engine.renderer.clear_mm_cache()
    else:
        policy._engine.engine_core.reset_mm_cache()
    salted = replace(request, seed=4)
    check(reference(), salted, ask(policy, [salted])[0])
    assert len(seen) == 6
    assert not policy._engine.has_unfinished_requests()
    ask(policy, [request])
    assert len(seen) == 6


def test_a_prompt_that_the_processor_refuses_fails_alone(policy: VllmPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise RuntimeError("a picture of nothing")

    with monkeypatch.context() as patch:
        patch.setattr(policy._engine.renderer.mm_processor, "apply", broken)
        with pytest.raises(InputError, match="vLLM refuses a prompt: RuntimeError: a picture of nothing"):
            ask(policy, [about("one")])
    assert [len(done.token_ids) for done in ask(policy, [about("one")])] == [6]


def test_a_burst_of_requests_is_taken_a_few_at_a_time(policy: VllmPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, order = policy._engine, list[str]()
    add, step = engine.add_request, engine.step
    monkeypatch.setattr(engine, "add_request", lambda *a, **k: (order.append("add"), add(*a, **k))[1])
    monkeypatch.setattr(engine, "step", lambda: (order.append("step"), step())[1])

    async def burst() -> None:
        talking = asyncio.ensure_future(policy.complete(about("none", max_tokens=200)))
        while "step" not in order:
            await asyncio.sleep(0.01)
        await asyncio.gather(*(policy.complete(about("none", seed=n)) for n in range(3 * JOBS)))
        await talking

    asyncio.run(burst())
    runs = "".join("a" if what == "add" else " " for what in order).split()
    assert sum(len(run) for run in runs) == 3 * JOBS + 1
    assert max(len(run) for run in runs) <= JOBS


def test_what_is_asked_for_is_the_same_in_any_order(policy: VllmPolicy) -> None:
    together = ask(policy, requests())
    assert [ask(policy, [request])[0].token_ids for request in requests()] == [done.token_ids for done in together]
