"""vLLM servers that the policy cannot use, settings that cannot work, and the GPUs that servers get."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_model
from cases import each_case
from vllm_stand_in import ENGINE, StandIn, policy

from vtcli.engines.policies import Placement
from vtcli.engines.vllm.servers.child import gpus_of
from vtcli.engines.vllm.start import arguments
from vtcli.errors import ConfigError, EngineError
from vtcli.rollout.loop import Limits


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn(tiny_model.folder(), tiny_model.chat()) as made:
        yield made


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"dtype": "bfloat16"}, "computes in bfloat16, the learner in float32: start it with that --dtype"),
        ({"max_model_len": 100}, "max_model_len is 100: start it with --max-model-len 256 or more"),
        ({"images": 1}, "images is 1: start it with"),
        ({"tensors": {"a.weight": [2, 3]}}, "has other tensors, .* of them; the first is a.weight: .2, 3. there, None"),
        ({"tensors": None}, "is not a server for engine=vllm_server"),
    ],
)
def test_a_server_that_does_not_fit_says_why(server: StandIn, facts: Any, said: str) -> None:
    server.facts |= facts
    with pytest.raises(EngineError, match=f"{server.url} .*{said}"), policy(server):
        pass


def test_the_room_of_servers_is_shared_by_their_ranks(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with policy(server) as opened:
        assert opened.cache_tokens is None  # it does not say: it queues what does not fit
    server.facts["cache_tokens"] = 1000
    with StandIn(tiny_model.folder(), tiny_model.chat()) as second:
        second.facts["cache_tokens"] = 501
        with policy(server, second) as opened:
            assert opened.cache_tokens == 1501
            monkeypatch.setattr(opened._fleet.circle, "world", 2)
            assert opened.cache_tokens == 750


def test_what_is_no_server_of_ours_is_named(server: StandIn) -> None:
    server.refuse = {"/vtcli"}
    with pytest.raises(EngineError, match="is not a server for engine=vllm_server: HTTP 500"), policy(server):
        pass
    server.refuse, server.key = set(), "secret"
    with pytest.raises(EngineError, match="the key differs: set VTCLI_SERVER_KEY"), policy(server):
        pass
    server.stop()
    with pytest.raises(EngineError, match=f"no vLLM server at {server.url}: GET /vtcli"), policy(server):
        pass
    server.again()


@each_case(
    ("changes", "said"),
    [
        ({"urls": ["localhost:8000"]}, "expected http://HOST:PORT"),
        ({"urls": ["http://a:1", "http://a:1"]}, "names a server twice"),
        ({"servers": 0}, "servers: must be at least 1"),
        ({"cache_gib": -1.0}, "cache_gib: must be above 0"),
        ({"timeout_s": math.inf}, "timeout_s: must be above 0, got inf"),
        ({"gpu_memory": math.nan}, "gpu_memory: must be above 0 and at most 1"),
        ({"bucket_mb": 0}, "bucket_mb: must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(ENGINE, **changes)


def test_a_spool_that_is_no_folder_is_refused(server: StandIn, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder here"), policy(server, spool=str(tmp_path / "none")):
        pass


@each_case(
    ("changes", "ranks", "expected"),
    [
        ({"servers": 2, "tensor_parallel": 2, "gpu_memory": 0.9}, 4, ["e", "f", "g", "h"]),
        ({"servers": 2, "gpus": [0, 3], "gpu_memory": 0.9}, 8, ["a", "d"]),
        ({"servers": 2}, 8, ["a", "b"]),  # shared, with less than half of the memory
        ({"servers": 2, "gpu_memory": 0.9}, 8, None),
        ({"servers": 3, "tensor_parallel": 2, "gpu_memory": 0.9}, 4, None),
        ({"gpus": [8]}, 4, None),
    ],
)
def test_servers_take_the_gpus_that_the_learner_leaves(
    monkeypatch: pytest.MonkeyPatch, changes: Any, ranks: int, expected: list[str] | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b,c,d,e,f,g,h")
    circle: Any = SimpleNamespace(gpus=8, local_world=ranks)
    engine = replace(ENGINE, **changes)
    if expected is None:
        with pytest.raises(ConfigError, match=r"need \d GPUs of this node, beside the learner's \d; it has 8"):
            [gpus_of(number, engine, circle) for number in range(engine.servers)]
    else:
        assert [gpu for number in range(engine.servers) for gpu in gpus_of(number, engine, circle)] == expected


def test_ranks_that_see_one_gpu_each_leave_none_for_a_server() -> None:
    circle: Any = SimpleNamespace(gpus=1, local_world=8)
    with pytest.raises(ConfigError, match=r"as by srun --gpus-per-task(.|\n)*--gpus-per-node"):
        gpus_of(0, replace(ENGINE, servers=1, gpu_memory=0.9), circle)


def test_a_model_over_several_gpus_in_process_is_for_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (replace(ENGINE, name="vllm", tensor_parallel=2), tiny_model.family(), Limits(), Placement())
    assert arguments(*given)["distributed_executor_backend"] == "mp"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"engine\.tensor_parallel=2 in process, with 2 ranks(.|\n)*vllm_server"):
        arguments(*given)
