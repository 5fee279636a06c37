"""``vtcli serve`` as a process, asked by the official client and by hand, with a real (random) tiny model."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import openai
import pytest
from cases import each_case

from stages import eval as evaluation
from stages import serve as stage
from vtcli.config import compose
from vtcli.errors import ConfigError, InputError
from vtcli.runs.environment import recorded
from vtcli.schema import Sample, Scored
from vtcli.serve.requests import RequestLimits, parse
from vtcli.store import codec, records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore, encode_png

QUESTION = "How many points?"
PNG = encode_png(np.full((56, 56, 3), 77, np.uint8))
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG).decode()}}
MESSAGES: list[Any] = [{"role": "user", "content": [IMAGE, {"type": "text", "text": QUESTION}]}]
ROOT = Path(__file__).resolve().parents[2]
COMMON = ["scale=tiny", "tracker=none", "agent.limits.max_tokens=600", "agent.limits.max_turn_tokens=24"]


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    url: str
    home: Path

    def get(self, path: str) -> dict[str, Any]:
        with urlopen(self.url.removesuffix("/v1") + path, timeout=60) as reply:
            return json.load(reply)

    def post(self, body: Any, **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        asked = Request(f"{self.url}/chat/completions", data, {"Content-Type": "application/json"} | headers)
        try:
            with urlopen(asked, timeout=60) as reply:
                return reply.status, json.load(reply), dict(reply.headers)
        except HTTPError as error:
            return error.code, json.load(error), dict(error.headers)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from vtcli.families.qwen_vl import tiny

    home = tmp_path_factory.mktemp("serve") / "artifacts"
    sizes = tiny.TinyModel(
        vocab_size=400, hidden_size=48, layers=1, heads=2, kv_heads=1, intermediate_size=64,
        vision_hidden_size=32, vision_depth=1, vision_heads=2, vision_intermediate_size=48,
    )  # fmt: skip
    tokenizer = tiny.train_tokenizer([f"{QUESTION} <answer>3</answer>"] * 3, sizes.vocab_size)
    with ArtifactStore(home).draft("model", "model", seed=0, stage="sft") as draft:
        tiny.build(draft.path, sizes, tokenizer, seed=0)
        draft.commit(recorded(compose.load("rl", ["+recipe=toolsrl", "rl.data=data:v1", *COMMON]).values))
    words = ["serve", "model=model:v1", f"home={home}", "serve.port=0", "tracker=none", "serve.record=true"]
    words += ["serve.bounds.active=2", "serve.bounds.queue=2", "serve.request.max_body_mb=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vtcli", *words], cwd=home.parent, text=True, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stderr is not None
    log: list[str] = []
    for line in process.stderr:
        log.append(line)
        if found := re.search(r"at (http://\S+/v1)", line):
            break
    else:
        pytest.fail("".join(log))
    yield Server(process, found.group(1), home)
    if process.poll() is None:
        process.kill()


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


def test_the_official_client_asks_plainly_and_streams(server: Server) -> None:
    asked: Any = {"model": "model-v1", "messages": MESSAGES, "seed": 3}
    assert [model.id for model in client(server).models.list()] == ["model-v1"]
    whole = client(server).chat.completions.create(**asked)
    message = whole.choices[0].message
    assert (
        whole.usage is not None
        and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    )
    chunks = list(client(server).chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in texts) == message.content
    told = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in texts)
    assert told == (message.model_extra or {})["reasoning_content"]
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert {chunk.id for chunk in chunks} == {chunks[0].id}

    async def twice() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none") as own:
            return list(await asyncio.gather(*(own.chat.completions.create(**asked) for _ in range(2))))

    assert {one.choices[0].message.content for one in asyncio.run(twice())} == {message.content}


def test_answers_are_token_for_token_what_eval_samples(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "model:v1@full", "messages": MESSAGES, "seed": 7, "n": 2, "temperature": 1.0}
    status, reply, _ = server.post(body)
    assert status == 200
    told = [server.get(facts["url"])["record"]["value"] for facts in reply["vtcli"]["choices"]]
    served = {one.id: one for one in (codec.decode(Scored, value).trajectory for value in told)}
    plain = {key: value for key, value in body.items() if key != "temperature"}  # it is the server's own
    name = parse(json.dumps(plain).encode(), ("model:v1",), RequestLimits()).id
    assert reply["vtcli"]["sample"] == name and reply["vtcli"]["seed"] == 7
    sample = Sample(name, "count", "answer", "test", QUESTION, "3", (), (), {"value": [3], "total": 5})
    with ArtifactStore(server.home).draft("data", "dataset") as draft:
        records.write_samples(draft.path / "answer-test.parquet", [(sample, [PNG])])
        draft.commit()
    words = ["data=data:v1", "model=model:v1", f"home={server.home}", "seed=7", "eval.forms=[answer]", *COMMON]
    words += ["eval.group_size=2", "eval.agent.sampling.temperature=1.0"]
    made = evaluation.run(compose.build(evaluation.Config, compose.load("eval", words)))
    found = {s.trajectory.id: s.trajectory for s in records.read(made.path / "trajectories.jsonl", Scored)}
    assert len(found) == 2
    for choice, facts in zip(reply["choices"], reply["vtcli"]["choices"], strict=True):
        trajectory = found.pop(facts["trajectory"])
        assert choice["message"]["content"] == "\n".join(turn.text for turn in trajectory.policy_turns)
        assert facts["stop"] == str(trajectory.stop)
        ours = served[trajectory.id]
        assert ours.prompt_ids == trajectory.prompt_ids
        for turn, expected in zip(ours.policy_turns, trajectory.policy_turns, strict=True):
            assert turn.token_ids == expected.token_ids
            assert turn.completion.logprobs == pytest.approx(expected.completion.logprobs, abs=1e-4)
    assert not found


def test_errors_are_openais_and_nothing_is_a_traceback(server: Server) -> None:
    with pytest.raises(openai.NotFoundError):
        client(server).chat.completions.create(model="gpt-4o", messages=MESSAGES)
    damaged = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG[:60]).decode()},
    }
    for body, status in [
        (b"{", 400),
        ({"messages": [{"role": "user", "content": [damaged]}]}, 400),
        ({"messages": [{"role": "user", "content": "x" * 1_100_000}]}, 413),
    ]:
        code, reply, headers = server.post(body)
        assert code == status and set(reply["error"]) == {"message", "type", "param", "code"}
        assert headers["X-Request-Id"]
    assert server.post({"messages": MESSAGES}, Host="evil.example")[0] == 403
    assert server.post({"messages": MESSAGES}, **{"Content-Type": "text/plain"})[0] == 415
    code, reply, _ = server.post({"messages": MESSAGES, "n": 5})  # there would never be room for so many
    assert (code, reply["error"]["param"]) == (400, "n") and "from 1 to 4" in reply["error"]["message"]


def test_a_client_that_goes_away_leaves_room(server: Server) -> None:
    impatient = client(server).with_options(timeout=0.01)
    for _ in range(6):
        with pytest.raises(openai.APITimeoutError):
            impatient.chat.completions.create(model="model-v1", messages=MESSAGES, n=4)
    deadline = time.monotonic() + 5  # the machine may be busy; each takes less than a second
    while server.post({"messages": MESSAGES, "n": 4})[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_host_that_others_reach_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VTCLI_API_KEY", raising=False)
    words = ["model=model:v1", "serve.host=0.0.0.0", "scale=tiny"]
    with pytest.raises(ConfigError, match="VTCLI_API_KEY"):
        compose.build(stage.Config, compose.load("serve", words))


def test_sigterm_ends_it_well(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert not list((server.home / ".work").glob("serve-*/images"))
    artifact = ArtifactStore(server.home).resolve("serve@latest", "trajectories")
    assert artifact.manifest.config["serve"]["agent"]["limits"]["max_tokens"] == 600  # as it was trained
    found = {scored.trajectory.id: scored.trajectory for scored in records.read(
        artifact.path / "trajectories.jsonl", Scored)}  # fmt: skip
    assert len(found) == artifact.manifest.summary["trajectories"] >= 3
    images = ImageStore(artifact.path / "images")
    shown = [ref for one in found.values() for ref in one.images]
    assert shown and all(images.full(ref).shape == (ref.height, ref.width, 3) for ref in shown)
    named = {ref.full for one in found.values() for ref in one.images} | {
        ref.view for one in found.values() for ref in one.images
    }
    assert {path.stem for path in images.root.rglob("*.png")} == named


REST = ("prompt", "images", "limits")


@each_case(
    ("summary", "message"),
    [
        ({}, "does not name the environment"),
        (
            {"environment": json.dumps({"env": {"_target_": "os.system"}} | {key: {"a": 1} for key in REST})},
            r"code from outside \(os.system\)",
        ),
    ],
)  # fmt: skip
def test_a_model_that_names_no_environment_of_ours_needs_one(
    summary: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with ArtifactStore(tmp_path).draft("model", "model") as draft:
        (draft.path / "config.json").write_text("{}")
        draft.commit(summary)
    config = compose.build(
        stage.Config, compose.load("serve", ["model=model:v1", f"home={tmp_path}", "tracker=none", "scale=tiny"])
    )
    with pytest.raises(InputError, match=message) as found:
        stage.run(config)
    assert "+recipe=NAME or env=NAME" in str(found.value)


@each_case(
    ("words", "left"),
    [
        ([], ["env", "prompt", "images", "limits"]),
        (["+recipe=toolsrl"], []),
        (["env=codev", "agent.limits.max_turns=2"], ["prompt", "images"]),
        (["prompt=compact", "images.max_pixels=9000"], ["env", "limits"]),
    ],
)
def test_what_the_command_does_not_give_is_the_models(words: list[str], left: list[str]) -> None:
    job = compose.load("serve", ["model=model:v1", "scale=tiny", *words])
    assert job.values["serve"]["as_trained"] == left
