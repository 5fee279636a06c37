"""Sleep of vLLM: the calls that an engine in this process gets, in order, and those that servers get. No GPU is needed:
a recording engine stands in for vLLM's, with its methods' names and parameters."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny_model
import torch
from vllm_stand_in import LIMITS, StandIn, policy

from vtcli.engines.policies import Engine, Placement
from vtcli.engines.vllm import policy as vllm_policy
from vtcli.engines.vllm.policy import VllmPolicy
from vtcli.engines.vllm.start import arguments
from vtcli.errors import ConfigError, EngineError
from vtcli.protocols import Request, Sampling


class RecordingEngine:
    """The methods of vLLM's ``LLMEngine`` that we call, and which memory is there, as its executor keeps it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asleep: set[str] = set()
        self.refuse: set[str] = set()
        self.threads: set[str] = set()
        self.model_executor = self.engine_core = self
        self.renderer = None
        self.batch_queue: list[str] = []  # steps in flight, of the core inside its client

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.threads.add(threading.current_thread().name)
        if name in self.refuse:
            raise RuntimeError(f"{name} failed")

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self._called(f"sleep {level} {mode}")
        self.asleep = {"weights", "kv_cache"}

    def wake_up(self, tags: list[str] | None = None) -> bool:
        self._called(f"wake_up {' '.join(tags or ['all'])}")
        self.asleep -= set(tags) if tags else self.asleep
        return not self.asleep

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> list[Any]:
        self._called(method)
        assert "weights" not in self.asleep, f"{method} on memory that is not there"
        dict((kwargs or {}).get("weights_iterator", ()))
        return [None]

    def step(self) -> list[Any]:
        assert not self.asleep, "a step without its memory"
        self._called("step")
        if self.batch_queue:
            self.batch_queue.pop()
        return []

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        assert not self.asleep, "a request without a cache"

    def abort_request(self, request_ids: list[str]) -> None: ...

    def reset_prefix_cache(self) -> bool:
        self._called("reset_prefix_cache")
        return True

    def reset_mm_cache(self) -> None: ...

    def reset_encoder_cache(self) -> None: ...

    def shutdown(self) -> None:
        self._called("shutdown")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[VllmPolicy, RecordingEngine]]]:
    made: list[VllmPolicy] = []
    engine = RecordingEngine()

    def make(level: int, *, ahead: bool = False) -> tuple[VllmPolicy, RecordingEngine]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: engine.calls.append("synchronize"))
        monkeypatch.setattr(vllm_policy, "load", lambda: None)
        monkeypatch.setattr(vllm_policy, "start", lambda given: engine)
        options = Engine("vllm", sleep=level, timeout_s=20, async_scheduling=ahead)
        made.append(VllmPolicy(options, tiny_model.family(), None, LIMITS, Placement()))  # type: ignore[arg-type]
        return made[0], engine

    yield make
    for each in made:
        each.close()


def weights() -> dict[str, torch.Tensor]:
    return dict(tiny_model.model().state_dict())


REQUEST = Request((1, 2, 3), (), 4, Sampling(), 0)
UPDATE = ["synchronize", "reload_weights", "synchronize", "reset_prefix_cache"]


@pytest.mark.parametrize("level", [1, 2])
def test_in_process_weights_wake_before_they_are_loaded_and_the_cache_last(opened: Any, level: int) -> None:
    found, engine = opened(level)
    found.sleep()
    for work in (lambda: asyncio.run(found.complete(REQUEST)), lambda: found.seen(REQUEST)):
        with pytest.raises(EngineError, match="while it sleeps"):
            work()
    found.update(weights(), 1)
    with pytest.raises(EngineError, match="while it sleeps"):
        asyncio.run(found.complete(REQUEST))
    found.wake()
    assert engine.calls == [f"sleep {level} abort", "wake_up weights", *UPDATE, "wake_up kv_cache"]
    assert engine.threads == {"vllm"}
    assert found.version == 1


def test_weights_that_were_kept_need_no_update_and_those_that_were_not_do(opened: Any) -> None:
    found, engine = opened(1)
    found.sleep()
    found.wake()
    assert engine.calls == ["sleep 1 abort", "wake_up kv_cache weights"]
    assert not engine.asleep


def test_a_cache_is_not_woken_for_weights_that_are_gone(opened: Any) -> None:
    found, engine = opened(2)
    found.sleep()
    with pytest.raises(EngineError, match=r"engine\.sleep=2 dropped the weights"):
        found.wake()
    engine.refuse = {"reload_weights"}
    with pytest.raises(EngineError, match="reload_weights failed"):
        found.update(weights(), 1)
    with pytest.raises(EngineError, match=r"engine\.sleep=2 dropped the weights"):  # woken memory, but no weights in it
        found.wake()
    assert found.version == 0
    found.close()  # whatever has failed
    assert engine.calls[-1] == "shutdown"


def test_a_sleep_that_fails_leaves_an_engine_that_is_not_asked(opened: Any) -> None:
    found, engine = opened(2)
    engine.refuse = {"sleep 2 abort"}
    with pytest.raises(EngineError, match="vLLM's sleep failed"):
        found.sleep()
    with pytest.raises(EngineError, match="while it sleeps"):
        asyncio.run(found.complete(REQUEST))


def test_without_sleep_an_update_is_what_it_was(opened: Any) -> None:
    found, engine = opened(0)
    found.update(weights(), 1)
    assert engine.calls == UPDATE


def test_steps_in_flight_end_before_sleep_and_before_weights(opened: Any) -> None:
    found, engine = opened(1, ahead=True)
    engine.batch_queue = ["this", "the next"]
    found.sleep()
    assert engine.calls == ["step", "step", "sleep 1 abort"]
    found.wake()
    engine.batch_queue, engine.calls = ["this"], []
    found.update(weights(), 1)
    assert engine.calls == ["step", *UPDATE]


def test_on_a_cpu_steps_ahead_are_refused_with_what_to_set() -> None:
    options = Engine("vllm", async_scheduling=True)
    with pytest.raises(ConfigError, match=r"needs a GPU.* Set engine\.async_scheduling=false"):
        VllmPolicy(options, tiny_model.family(), None, LIMITS, Placement())  # type: ignore[arg-type]


def test_on_a_cpu_sleep_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"engine\.sleep=2 needs a GPU.* Set engine\.sleep=0"):
        VllmPolicy(Engine("vllm", sleep=2), tiny_model.family(), None, LIMITS, Placement())  # type: ignore[arg-type]


def test_the_mode_is_switched_on_where_the_engine_shall_sleep() -> None:
    asked = [arguments(Engine("vllm", sleep=level), tiny_model.family(), LIMITS, Placement()) for level in (0, 1, 2)]
    assert [each["enable_sleep_mode"] for each in asked] == [False, True, True]


def test_the_recording_engine_has_vllms_own_parameters() -> None:
    vllm = pytest.importorskip("vllm.v1.engine.llm_engine")
    for name in ("sleep", "wake_up", "reset_prefix_cache", "collective_rpc"):
        theirs = inspect.signature(getattr(vllm.LLMEngine, name)).parameters
        ours = inspect.signature(getattr(RecordingEngine, name)).parameters
        assert list(ours) == list(theirs)[: len(ours)], name
        assert {k: v.default for k, v in ours.items()} == {k: theirs[k].default for k in ours}, name
    tags = pytest.importorskip("vllm.v1.executor.abstract").SLEEP_TAGS
    assert tags == vllm_policy.SLEEPING


# -- servers -----------------------------------------------------------------------------------------------------------


def changes(server: StandIn) -> list[str]:
    """The calls that change memory or weights."""
    return [call for call in server.calls if call in (*SERVER_UPDATE, "/sleep", "/wake_up")]


SERVER_UPDATE = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"]


def test_servers_wake_their_weights_for_the_update_and_the_rest_after_it() -> None:
    folder = tiny_model.folder()
    with StandIn(folder, tiny_model.family().chat) as server:
        server.facts["sleep"] = True
        with policy(server, sleep=2) as found:
            server.calls.clear()
            found.sleep()
            with pytest.raises(EngineError, match="while they sleep"):
                asyncio.run(found.complete(REQUEST))
            found.update(weights(), 1)
            found.wake()
            assert changes(server) == ["/sleep", "/wake_up", *SERVER_UPDATE[:-1], "/wake_up"]
            assert server.asked == [{"level": "2", "mode": "abort"}, {"tags": "weights"}, {"tags": "kv_cache"}]
            assert asyncio.run(found.complete(REQUEST)).token_ids


def test_a_server_without_the_mode_is_refused() -> None:
    with (
        StandIn(tiny_model.folder(), tiny_model.family().chat) as server,
        pytest.raises(EngineError, match=r"it cannot sleep: start it with --enable-sleep-mode"),
        policy(server, sleep=1),
    ):
        pass


def test_a_server_that_dies_asleep_is_mended_when_the_others_wake() -> None:
    chat = tiny_model.family().chat
    with StandIn(tiny_model.folder(), chat) as one, StandIn(tiny_model.folder(), chat) as two:
        one.facts["sleep"] = two.facts["sleep"] = True
        with policy(one, two, sleep=2) as found:
            found.sleep()
            two.stop()
            found.update(weights(), 1)
            found.wake()
            assert asyncio.run(found.complete(REQUEST)).token_ids
            assert [server.up for server in found._fleet.servers] == [True, False]
            assert found._fleet.servers[1].mending is not None  # only now, not beside the learner
            two.again()
