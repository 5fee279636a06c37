"""Real vLLM servers that are killed, or hang, in the midst of requests; where vLLM is not installed, nothing (``make
test-vllm``)."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_model
from wide_model import LIMITS, SIZES, ask, changed, check, family, prompts, requests, view

from vtcli.engines.policies import Engine, Placement, open_policy
from vtcli.engines.vllm.servers.policy import ServerPolicy
from vtcli.families.qwen_vl import tiny
from vtcli.protocols import Request, Sampling

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vllm is not installed here; `make test-vllm` installs it and runs this",
    ),
]

START_S = 900.0
ENGINE = Engine("vllm_server", cache_gib=0.25, servers=2, silence_s=20, start_timeout_s=START_S)


@pytest.fixture(scope="module")
def policy() -> Iterator[ServerPolicy]:
    opened = open_policy(ENGINE, family(), view, LIMITS, Placement())
    assert isinstance(opened, ServerPolicy)
    opened.update(changed().state_dict(), 1)  # what a server that comes back must have, and its folder has not
    yield opened
    opened.close()


def many() -> list[Request]:
    """Long ones, so that a server is at work when it is killed."""
    out: list[Request] = []
    for seed in range(40):
        ids, images = list(prompts().values())[seed % 6]
        out.append(Request(ids, images, min(120, 255 - len(ids)), Sampling(), seed, rollout=seed + 1))
    return out


def later(seconds: float, what: object) -> None:
    threading.Timer(seconds, what).start()  # pyright: ignore[reportArgumentType]


def test_a_server_that_is_killed_costs_no_completion_and_comes_back_with_the_weights_of_now(
    policy: ServerPolicy,
) -> None:
    expected = ask(policy, many())
    first = policy._fleet.servers[0]
    assert first.child is not None
    pid = first.child.process.pid
    later(0.3, lambda: os.kill(pid, signal.SIGKILL))
    assert [c.token_ids for c in ask(policy, many())] == [c.token_ids for c in expected]
    until = time.monotonic() + START_S
    while not (first.up and first.restarts < ENGINE.restarts) and time.monotonic() < until:
        time.sleep(0.5)
    assert first.up, first.why
    assert first.restarts == ENGINE.restarts - 1
    policy._fleet._homes.clear()
    assert [c.token_ids for c in ask(policy, many())] == [c.token_ids for c in expected]
    asked = [replace(one, rollout=0) for one in requests()]
    for request, completion in zip(asked, ask(policy, asked), strict=True):
        check(changed(), request, completion)


def test_a_server_that_hangs_costs_no_completion(policy: ServerPolicy) -> None:
    expected = ask(policy, many())
    second = policy._fleet.servers[1]
    assert second.child is not None
    child = second.child
    later(0.3, lambda: child.signal(signal.SIGSTOP))
    assert [c.token_ids for c in ask(policy, many())] == [c.token_ids for c in expected]
    assert not second.up
    assert "within 20 s" in second.why or "restart" in second.why


@pytest.mark.parametrize("engine", [pytest.param("vllm", marks=pytest.mark.wide), "vllm_server"])
def test_two_workers_share_a_model(tmp_path: Path, engine: str) -> None:
    """In a process of its own: vLLM's workers import the main module again."""
    here = os.pathsep.join(
        [str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH", "")]
    )  # for wide_model.py
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path), engine],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
        env={**os.environ, "PYTHONPATH": here},
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _two_workers(home: Path, engine: str) -> None:
    """Log-probabilities of both weights are those of plain transformers, and prompts are read as the learner does."""
    from transformers import AutoModelForImageTextToText

    from vtcli.engines.inputs import seen
    from vtcli.families.table import open_family

    sizes = replace(SIZES, hidden_size=128, heads=4, kv_heads=2)  # heads of 32 for each
    tiny.build(home / "four", sizes, tiny.train_tokenizer(tiny_model.TEXTS, sizes.vocab_size), seed=3)
    model = AutoModelForImageTextToText.from_pretrained(home / "four").eval()
    own = open_family(home / "four")
    wanted = replace(ENGINE, name=engine, servers=1, tensor_parallel=2, bucket_mb=1)
    opened = open_policy(wanted, own, view, LIMITS, Placement())
    for version in range(2):
        if version:
            model.load_state_dict({name: value * 1.2 for name, value in model.state_dict().items()})
            opened.update(model.state_dict(), version)
        for request, completion in zip(requests(), ask(opened, requests()), strict=True):
            check(model, request, completion)
            ours = seen(request.token_ids, request.images, own, view)
            assert ours.differences(opened.seen(request)) == []
    opened.close()


if __name__ == "__main__":
    _two_workers(Path(sys.argv[1]), sys.argv[2])
