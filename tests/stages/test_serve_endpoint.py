"""``vtcli serve serve.policy=endpoint``: someone else's model as an agent, over real HTTP on both sides."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stage_server
import teacher_server as world
from judge_server import Body, JudgeServer, Reaction

from stages import serve as stage
from vtcli.config import compose
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.schema import Scored
from vtcli.store import records
from vtcli.store.images import encode_png

URL = "data:image/png;base64," + base64.b64encode(encode_png(np.full((112, 112, 3), 77, np.uint8))).decode()
ASKED = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}},
                                      {"type": "text", "text": "Which SECRET letter?"}]}]  # fmt: skip
WORDS = ["env=native", "scale=tiny", "tracker=none", "serve.policy=endpoint", "model=gpt-x"]


def react(body: Body, number: int) -> Reaction:
    """Zooms in, then answers."""
    del number
    if any(message["role"] == "assistant" for message in body["messages"]):
        return world.said(world.ANSWER)
    call = {"name": "image_zoom_in_tool", "arguments": json.dumps({"bbox_2d": world.BOX})}
    return world.said("Closer.", "tool_calls", tool_calls=[{"id": "x", "type": "function", "function": call}])


def words(home: Path, url: str, *more: str) -> list[str]:
    return [*WORDS, f"home={home}", f"serve.endpoint.url={url}", *more]


def test_an_endpoint_is_served_as_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def work(client: stage_server.Client) -> None:
        status, reply = client.post(messages=ASKED, seed=3)
        assert status == 200 and reply["model"] == "gpt-x"
        (choice,), (told,) = reply["choices"], reply["vtcli"]["choices"]
        assert choice["message"]["content"] == "K" and choice["finish_reason"] == "stop"
        ((call,),) = [step["calls"] for step in told["steps"]]
        assert (call["name"], call["status"], len(call["images"])) == ("image_zoom_in_tool", "ok", 1)
        assert [one["role"] for one in client.get(told["url"])["turns"]] == ["policy", "world", "policy"]
        assert client.post(messages=ASKED, seed=3)[1]["choices"] == reply["choices"]
        assert client.post(messages=[])[0] == 400

    with JudgeServer(react) as server:
        given = words(tmp_path, server.url, "serve.record=true", "tracker=mlflow")
        made = stage_server.serve([word for word in given if word != "tracker=none"], work)
        assert len(server.requests) == 4  # no reply is kept
        first = server.requests[0]
    assert "image_zoom_in_tool" in [tool["function"]["name"] for tool in first["tools"]]
    assert first["model"] == "gpt-x" and "SECRET" in json.dumps(first["messages"])
    (stored,) = records.read(made.path / "trajectories.jsonl", Scored)
    assert stored.trajectory.prompt_ids == () and stored.trajectory.answer == "K"
    assert not list(tmp_path.rglob(".replies"))
    _check_run(tmp_path)


def _check_run(home: Path) -> None:
    """The run says what was served."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    (run,) = [run for one in client.search_experiments() for run in client.search_runs([one.experiment_id])]
    told: dict[str, Any] = run.data.metrics
    assert run.info.status == "FINISHED" and run.data.tags["vtcli.served"] == "gpt-x"
    assert (told["responses.200"], told["responses.400"], told["stops.answered"]) == (2, 1, 2)
    assert told["tool_calls.image_zoom_in_tool.ok"] == 2
    assert told["generation_tokens"] > 0 and told["prompt_tokens"] > 0


def test_an_endpoint_that_is_gone_is_one_error_and_ends_the_server(tmp_path: Path) -> None:
    """The engine's death from the client to the exit code."""

    def work(client: stage_server.Client) -> None:
        status, text = client.post(stream=True)
        assert status == 200 and text.count("the engine has failed") == 1 and text.endswith("data: [DONE]\n\n")

    patience = "serve.endpoint.patience={attempts: 1, give_up: 1, timeout_s: 5.0, deadline_s: 5.0}"
    with pytest.raises(EngineError, match=r"serve\.endpoint at http://127\.0\.0\.1:9/v1"):
        stage_server.serve(words(tmp_path, "http://127.0.0.1:9/v1", patience), work, ends=True)


def test_an_endpoint_needs_an_address_and_a_world(tmp_path: Path) -> None:
    def run(*given: str) -> None:
        job = compose.load("serve", [*given, f"home={tmp_path}"])
        stage.run(compose.build(stage.Config, job))

    with pytest.raises(ConfigError, match=r"serve\.policy=endpoint .*serve\.endpoint\.url"):
        run(*WORDS)
    with pytest.raises(InputError, match=r"\+recipe=NAME or env=NAME"):
        run(*WORDS[1:], "serve.endpoint.url=http://127.0.0.1:9/v1")
