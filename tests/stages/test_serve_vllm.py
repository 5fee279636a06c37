"""``vtcli serve`` on vLLM, for real; where it is not installed, nothing (``make test-vllm``)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stage_server
import wide_model

from vtcli.errors import EngineError
from vtcli.session import session

CONTENT = re.compile(r'"content": "(.*?)"')

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vllm is not installed here; `make test-vllm` installs it and runs this",
    ),
]


def until(true: Callable[[], bool], limit_s: float) -> float:
    """Waits, and returns the seconds that it took."""
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < limit_s
        time.sleep(0.01)
    return time.monotonic() - begin


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The policies that the stage has opened."""
    found, made = list[Any](), session.open_policy

    def open_policy(*given: Any) -> Any:
        found.append(made(*given))
        return found[-1]

    monkeypatch.setattr(session, "open_policy", open_policy)
    return found


def test_vllm_answers_and_a_client_that_goes_away_takes_its_requests_with_it(tmp_path: Path, opened: list[Any]) -> None:
    def work(client: stage_server.Client) -> None:
        status, reply = client.post(seed=3, temperature=0)
        assert status == 200 and reply["usage"]["completion_tokens"] > 0
        assert client.post(seed=3, temperature=0)[1]["choices"] == reply["choices"]
        status, text = client.post(seed=3, temperature=0, stream=True)
        assert status == 200 and text.endswith("data: [DONE]\n\n")
        engine = opened[0]._engine
        port = int(client.url.rpartition(":")[2])
        for stream in (False, True):
            body = json.dumps({"messages": [{"role": "user", "content": "Why?"}], "n": 4, "stream": stream}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            with socket.create_connection(("127.0.0.1", port)) as gone:
                gone.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
                until(engine.has_unfinished_requests, 60)
            until(lambda: not engine.has_unfinished_requests(), 10)  # a second, and a step of the engine
        assert client.post()[0] == 200

    assert stage_server.serve([*words(tmp_path), "engine=vllm"], work) is None


def test_a_vllm_server_that_is_killed_is_started_again_and_costs_no_question(tmp_path: Path, opened: list[Any]) -> None:
    """Streams, whose empty deltas tell the client that it is still waited for."""

    def work(client: stage_server.Client) -> None:
        (server,) = opened[0]._fleet.servers
        asked = {"seed": 3, "temperature": 0, "stream": True}
        before, pid = client.post(**asked), server.child.process.pid
        os.kill(pid, signal.SIGKILL)
        during = client.post(**asked)
        assert server.child.process.pid != pid and server.restarts == 0
        contents = [CONTENT.findall(text) for status, text in (before, during) if status == 200]
        assert len(contents) == 2 and contents[0] == contents[1] and "".join(contents[0])
        os.kill(server.child.process.pid, signal.SIGKILL)  # it was started again as often as it may be
        status, reply = client.post()
        assert status == 503 and reply["error"]["code"] == "engine_failed"

    engine = ["engine=vllm_server", "engine.servers=1", "engine.restarts=1"]
    with pytest.raises(EngineError, match="=1 times already"):
        stage_server.serve([*words(tmp_path), *engine], work, ends=True)


def words(folder: Path) -> list[str]:
    limits = ["agent.limits.max_tokens=500", "agent.limits.max_turn_tokens=400", "agent.limits.max_turns=1"]
    return [f"model={wide_model.folder()}", "env=native", "scale=tiny", "tracker=none", f"home={folder}", *limits]
