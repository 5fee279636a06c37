"""The policy on vLLM servers against servers that misbehave; test_vllm_faults.py has real ones."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from aiohttp import web
from safetensors.torch import load_file
from vllm_stand_in import StandIn, policy

from vtcli.engines.vllm.servers import fleet
from vtcli.engines.vllm.servers.child import Child, ServerPlan
from vtcli.engines.vllm.servers.policy import LostError, ServerPolicy
from vtcli.errors import EngineError, InputError, VtcliError
from vtcli.protocols import Request, Sampling
from vtcli.schema import Completion


@pytest.fixture
def stand_in() -> Iterator[Callable[..., StandIn]]:
    made: list[StandIn] = []

    def make(react: Any = None) -> StandIn:
        made.append(StandIn(tiny_model.folder(), tiny_model.chat(), react))
        return made[-1]

    yield make
    for server in made:
        server.stop()


def request(seed: int = 0, images: int = 0, rollout: int = 0, max_tokens: int = 20) -> Request:
    shown = tuple(tiny_model.image(nth) for nth in range(images))
    ids = tiny_model.chat().prompt("You are kind.", "<image>" * images + "Where is the tag?", shown)
    return Request(ids, shown, max_tokens, Sampling(), seed, rollout=rollout)


def ask(opened: ServerPolicy, *asked: Request) -> list[Completion]:
    async def everyone() -> list[Completion]:
        return await asyncio.wait_for(asyncio.gather(*(opened.complete(one) for one in asked)), 20)

    return asyncio.run(everyone())


@functools.cache
def weights(factor: float = 1.0) -> dict[str, torch.Tensor]:
    if factor != 1.0:
        return {name: value * factor for name, value in weights().items()}
    return tiny_model.model().state_dict()


# -- what goes well ----------------------------------------------------------------------------------------------------


def test_servers_have_the_weights_of_the_folder_before_they_are_asked(stand_in: Callable[..., StandIn]) -> None:
    one, other = stand_in(), stand_in()
    expected = load_file(tiny_model.folder() / "model.safetensors")
    with policy(one, other) as opened:
        for server in (one, other):
            assert server.weights.keys() == expected.keys()
            assert all(torch.equal(value, expected[name]) for name, value in server.weights.items())
            assert server.label == opened._fleet.label
        done = ask(opened, request(seed=7))[0]
    assert done.finish == "stop"
    assert done.logprobs == (-1.5,) * 6


@pytest.mark.parametrize("spool", [False, True])
def test_new_weights_arrive_over_http_or_through_a_folder(
    stand_in: Callable[..., StandIn], tmp_path: Any, spool: bool
) -> None:
    server = stand_in()
    with policy(server, spool=str(tmp_path) if spool else None) as opened:
        opened.update(weights(2.0), 1)
        assert ("/vtcli/bucket" in server.calls) == (not spool)
        assert all(torch.equal(value, weights(2.0)[name]) for name, value in server.weights.items())
        assert server.weights.keys() == weights().keys()
        assert opened.version == 1
        assert not server.paused
        ask(opened, request())
    assert list(tmp_path.iterdir()) == []


def test_a_rollout_stays_on_its_server_and_rollouts_are_shared_out(stand_in: Callable[..., StandIn]) -> None:
    servers = [stand_in(), stand_in()]
    with policy(*servers) as opened:
        for _ in range(3):
            ask(opened, *(request(seed=n, rollout=n + 1) for n in range(6)))
    seeds = [{b["sampling_params"]["extra_args"]["vtcli"]["seed"] for b in server.generated} for server in servers]
    assert [len(found) for found in seeds] == [3, 3]
    assert not seeds[0] & seeds[1]
    assert [len(server.generated) for server in servers] == [9, 9]
    places = {
        (b["sampling_params"]["extra_args"]["vtcli"]["seed"], b["priority"]) for s in servers for b in s.generated
    }
    assert sorted(places) == [(n, n + 1) for n in range(6)]  # every turn has the place of its rollout's first


def test_an_image_is_sent_once_and_again_when_the_server_has_dropped_it(stand_in: Callable[..., StandIn]) -> None:
    server = stand_in()
    with policy(server) as opened:
        ask(opened, request(images=2))
        ask(opened, request(images=2))
        sent = [[part["url"] is not None for part in body["content_parts"]] for body in server.generated]
        assert sent == [[True, True], [False, False]]
        server.views.clear()
        assert ask(opened, request(images=2))[0].token_ids
        sent = [[part["url"] is not None for part in body["content_parts"]] for body in server.generated[2:]]
        assert sent == [[False, False], [True, True]]
        opened.update(weights(), 1)  # all caches are emptied with it
        ask(opened, request(images=2))
        assert all(part["url"] for part in server.generated[-1]["content_parts"])


# -- replies that are not what was asked for ---------------------------------------------------------------------------


def odd(**changes: Any) -> Any:
    return lambda server, body: server.completion(body, **changes)


def logprobs(value: Any, ids: Any = None) -> Any:
    def react(server: StandIn, body: Any) -> Any:
        said = server.completion(body)["choices"][0]["token_ids"]
        return server.completion(body, logprobs={"content": [{"token_id": t, "logprob": value} for t in (ids or said)]})

    return react


ODD = {
    "HTML": (lambda *_: web.Response(text="<html>Bad gateway</html>", content_type="text/html"), "not JSON"),
    "nothing": (lambda *_: web.Response(text=""), "without a completion"),
    "another object": (lambda *_: {"detail": "hello"}, "without a completion"),
    "a list": (lambda *_: [1, 2], "without a completion"),
    "no tokens": (odd(token_ids=[], logprobs={"content": []}, weight_versions=None), "a completion of 0 tokens"),
    "an abort": (odd(finish_reason="abort"), "ended by 'abort'"),
    "strange ids": (odd(token_ids=[10**6], logprobs={"content": []}), "."),
    "other ids": (logprobs(-1.0, [1, 2, 3, 4, 5, 6]), "that are not the 6 of the completion"),
    "too few": (logprobs(-1.0, [1]), "log-probabilities of 1 tokens"),
    "not a number": (logprobs(-9999.0), "a log-probability of -9999.0"),
    "NaN": (logprobs(float("nan")), "a log-probability of nan"),
    "above zero": (logprobs(0.5), "a log-probability of 0.5"),
    "a 500": (lambda *_: web.json_response({"error": {"message": "boom"}}, status=500), "HTTP 500: boom"),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_reply_is_asked_for_again_and_then_the_trajectory_is_lost(
    stand_in: Callable[..., StandIn], kind: str
) -> None:
    react, said = ODD[kind]
    server = stand_in(react)
    with policy(server) as opened:
        with pytest.raises(LostError, match=f"(?s)no completion after 3 attempts: http://127.0.0.1:.*{said}"):
            ask(opened, request())
        assert len(server.generated) == 3
        server.react = StandIn.completion
        assert ask(opened, request())[0].token_ids  # and it goes on
    assert not issubclass(LostError, VtcliError)  # a rollout that it ends is broken, not the run


def test_ids_that_the_model_does_not_have_are_odd(stand_in: Callable[..., StandIn]) -> None:
    def react(server: StandIn, body: Any) -> Any:
        content = [{"token_id": 10**6, "logprob": -1.0}]
        spans = [{"version": server.label, "start": 0, "end": 1}]
        return server.completion(body, token_ids=[10**6], logprobs={"content": content}, weight_versions=spans)

    with policy(stand_in(react), retries=0) as opened, pytest.raises(LostError, match=r"does not have .*1000000"):
        ask(opened, request())


def test_more_tokens_than_were_asked_for_are_odd(stand_in: Callable[..., StandIn]) -> None:
    def react(server: StandIn, body: Any) -> Any:
        body["sampling_params"]["extra_args"]["vtcli"]["max_tokens"] += 3
        return server.completion(body)

    with policy(stand_in(react), retries=0) as opened, pytest.raises(LostError, match="5 tokens where at most 2"):
        ask(opened, request(max_tokens=2))


def test_another_server_is_asked_where_there_is_one(stand_in: Callable[..., StandIn]) -> None:
    bad, good = stand_in(ODD["HTML"][0]), stand_in()
    with policy(bad, good) as opened:
        done = ask(opened, *(request(seed=n) for n in range(8)))
    assert len(done) == 8
    assert len(good.generated) >= 8
    assert bad.generated


def test_a_prompt_that_is_read_otherwise_ends_the_run(stand_in: Callable[..., StandIn]) -> None:
    def react(server: StandIn, body: Any) -> Any:
        return server.completion(body) | {"prompt_token_ids": [1, 2, 3]}

    with policy(stand_in(react)) as opened, pytest.raises(InputError, match=r"reads a prompt of .* as 3 tokens"):
        ask(opened, request(images=1))


def test_a_request_that_the_server_refuses_ends_the_run(stand_in: Callable[..., StandIn]) -> None:
    server = stand_in(lambda *_: web.json_response({"error": {"message": "too long"}}, status=400))
    with policy(server) as opened, pytest.raises(InputError, match=r"refuses a prompt \(http.*HTTP 400: too long"):
        ask(opened, request())


# -- servers that fail -------------------------------------------------------------------------------------------------


def test_a_server_that_dies_is_left_and_comes_back_with_the_weights_of_now(stand_in: Callable[..., StandIn]) -> None:
    one, other = stand_in(), stand_in()
    with policy(one, other) as opened:
        opened.update(weights(3.0), 1)
        one.slow = {"/inference/v1/generate": 30.0}
        asked = [request(seed=n, rollout=n + 1) for n in range(8)]

        async def killed() -> list[Completion]:
            running = asyncio.gather(*(opened.complete(one) for one in asked))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(one.stop)
            return await asyncio.wait_for(running, 10)

        assert len(asyncio.run(killed())) == 8
        assert len(other.generated) >= 8
        one.slow = {}
        one.again()
        until = time.monotonic() + 10
        while not all(server.up for server in opened._fleet.servers) and time.monotonic() < until:
            time.sleep(0.05)
        assert one.label == other.label
        assert all(torch.equal(value, weights(3.0)[name]) for name, value in one.weights.items())
        ask(opened, *(request(seed=n, rollout=n + 100) for n in range(8)))
        assert one.generated


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_is_waited_for_while_a_proxy_answers_for_it(stand_in: Callable[..., StandIn], status: int) -> None:
    server = stand_in()
    with policy(server) as opened:
        server.refuse, server.refusal = {"/vtcli", "/weight_info", "/inference/v1/generate"}, status
        back = threading.Timer(1.0, server.refuse.clear)
        back.start()
        assert ask(opened, request())[0].token_ids
        back.join()


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_server_of_ours_is_started_again_until_it_starts_or_as_often_as_it_may(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restarts: int
) -> None:
    """The first start ends at once; the second one answers."""
    plan, children = ServerPlan(0, {}, tmp_path, "", []), list[Child]()

    def launch(plan: ServerPlan, port: int = 0) -> Child:
        code, file = ("import time; time.sleep(60)", tmp_path / "port") if children else ("1 / 0", tmp_path / "none")
        (tmp_path / "port").write_text(str(port))
        with plan.log.open("ab") as log:
            process = subprocess.Popen([sys.executable, "-c", code], stderr=log, start_new_session=True)
        children.append(Child(plan, process, file))
        return children[-1]

    monkeypatch.setattr(fleet, "launch", launch)
    with policy(stand_in(), restarts=restarts) as opened:
        (server,) = opened._fleet.servers
        server.restarts = restarts
        server.child = Child(plan, subprocess.Popen(["true"], start_new_session=True), tmp_path / "none")
        opened._loop.call_soon_threadsafe(opened._fleet.fail, server, "it was killed")
        if restarts == 1:
            with pytest.raises(
                EngineError, match=r"(?s)was killed; then: .*ZeroDivisionError.*restarts=1 times alread"
            ):
                ask(opened, request())
        else:
            assert ask(opened, request())[0].token_ids
            assert server.up and not server.restarts
    assert len(children) == restarts and all(child.process.poll() is not None for child in children)


def test_the_servers_of_rollouts_that_are_long_over_are_forgotten(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "REMEMBERED", 4)
    with policy(stand_in(), stand_in()) as opened:
        ask(opened, *(request(rollout=n) for n in range(1, 11)))
        assert len(opened._fleet._homes) == 4


def test_a_server_that_was_started_again_with_old_weights_is_found_out(stand_in: Callable[..., StandIn]) -> None:
    server = stand_in()
    with policy(server) as opened:
        opened.update(weights(3.0), 1)
        wanted = server.label
        server.label, server.weights = "default", {}  # between two requests: no connection broke
        assert ask(opened, request())[0].token_ids
        assert server.label == wanted
        assert len(server.generated) == 2  # the first reply was of the old weights
        assert all(torch.equal(value, weights(3.0)[name]) for name, value in server.weights.items())


def test_a_server_that_hangs_is_left_although_its_requests_would_wait_longer(stand_in: Callable[..., StandIn]) -> None:
    one, other = stand_in(), stand_in()
    with policy(one, other, timeout_s=60, silence_s=0.4) as opened:
        one.slow = dict.fromkeys(["/inference/v1/generate", "/weight_info", "/vtcli", "/pause"], 30.0)
        begin = time.monotonic()
        assert len(ask(opened, *(request(seed=n) for n in range(6)))) == 6
        assert time.monotonic() - begin < 15
        assert not opened._fleet.servers[0].up
        assert "no reply to GET /weight_info within 0.4 s" in opened._fleet.servers[0].why


def test_a_run_without_any_server_ends_with_the_reasons(stand_in: Callable[..., StandIn]) -> None:
    server = stand_in()
    with policy(server, timeout_s=1.0) as opened:
        server.stop()
        with pytest.raises(
            EngineError, match=r"no vLLM server is left: http.*did not come back within engine\.timeout"
        ):
            ask(opened, request())
        server.again()


def test_a_completion_that_does_not_come_is_named(stand_in: Callable[..., StandIn]) -> None:
    server = stand_in()
    with policy(server, timeout_s=0.5) as opened:
        server.slow = {"/inference/v1/generate": 30.0}
        with pytest.raises(EngineError, match=r"no completion from vLLM within engine\.timeout_s=0\.5 for a prompt of"):
            ask(opened, request())


def test_a_server_that_completes_others_meanwhile_is_waited_for(stand_in: Callable[..., StandIn]) -> None:
    """A queue is no failure: the limit counts from the server's last completion."""
    server = stand_in()

    async def both(opened: ServerPolicy) -> list[Completion]:
        server.slow = {"/inference/v1/generate": 2.4}
        first = asyncio.ensure_future(opened.complete(request(seed=1)))
        await asyncio.sleep(0.2)
        server.slow = {"/inference/v1/generate": 0.6}
        return await asyncio.gather(first, opened.complete(request(seed=2)))

    with policy(server, timeout_s=1.8) as opened:
        assert len(asyncio.run(both(opened))) == 2


# -- weight updates that fail ------------------------------------------------------------------------------------------


def test_an_update_that_hangs_names_server_parameter_and_seconds(stand_in: Callable[..., StandIn]) -> None:
    server = stand_in()
    with policy(server, timeout_s=1.0) as opened:
        server.slow = {"/update_weights": 30.0}
        with pytest.raises(EngineError, match=r"update to version 1 took longer than 1 s; it was at \S+weight .*http"):
            opened.update(weights(), 1)
        assert opened.version == 0
        assert server.label.endswith("-unfinished")  # whoever asks it now finds out
        server.slow = {}
        assert ask(opened, request())[0].token_ids  # the weights of before are given to it again
        assert server.label == opened._fleet.label


def test_an_update_that_a_server_refuses_names_it(stand_in: Callable[..., StandIn]) -> None:
    one, other = stand_in(), stand_in()
    with policy(one, other) as opened:
        other.refuse = {"/update_weights"}
        with pytest.raises(EngineError, match=rf"version 1: {other.url} .* failed at .*weight.* after .* s: HTTP 500"):
            opened.update(weights(), 1)


def test_an_update_goes_on_without_a_server_that_is_gone(stand_in: Callable[..., StandIn]) -> None:
    one, other = stand_in(), stand_in()
    with policy(one, other) as opened:
        one.stop()
        opened.update(weights(2.0), 1)
        assert other.label == opened._fleet.label
        assert len(ask(opened, *(request(seed=n) for n in range(4)))) == 4
        one.again()


def test_without_kept_weights_a_server_waits_for_the_next_ones(stand_in: Callable[..., StandIn]) -> None:
    one, other = stand_in(), stand_in()
    with policy(one, other, keep_weights=False) as opened:
        opened.update(weights(2.0), 1)
        one.label = "default"
        ask(opened, *(request(seed=n) for n in range(4)))
        assert [server.up for server in opened._fleet.servers] == [False, True]
        opened.update(weights(3.0), 2)
        assert [server.up for server in opened._fleet.servers] == [True, True]
        assert all(torch.equal(value, weights(3.0)[name]) for name, value in one.weights.items())


def test_no_update_while_requests_are_open(stand_in: Callable[..., StandIn]) -> None:
    server = stand_in()
    with policy(server) as opened:
        server.slow = {"/inference/v1/generate": 30.0}

        async def both() -> None:
            asked = asyncio.ensure_future(opened.complete(request()))
            await asyncio.sleep(0.1)
            with pytest.raises(EngineError, match="1 requests are open during a weight update"):
                await asyncio.to_thread(opened.update, weights(), 1)
            asked.cancel()

        asyncio.run(both())
