"""``eval.policy=endpoint``: someone else's model in our worlds, over real HTTP, with native calls or with text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import teacher_server as world
from fakes import ALL_TOOLS, make_pixels, native_card
from judge_server import Body, JudgeServer, Reaction

from stages import eval as stage
from tests.support.agents import with_agent
from vtcli.engines.openai.baseline import Baseline
from vtcli.engines.openai.chat import ChatMessage, native
from vtcli.engines.openai.ledger import Budget, BudgetSpentError, Price
from vtcli.envs.card import EnvCard
from vtcli.errors import ConfigError, EngineError
from vtcli.rewards import toolsrl
from vtcli.rollout.loop import Limits
from vtcli.schema import Sample, Scored, Stop
from vtcli.signals import answer, usage
from vtcli.signals import format as format_rule
from vtcli.statistics.rows import Row
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageLimits, encode_png

PROMPT = {**world.PROMPT, "system": "Call tools as <tool_call>.\n{tools}"}
NATIVE_PROMPT = {**world.PROMPT, "system": "Look closely."}


def called(arguments: str) -> Reaction:
    function = {"name": "image_zoom_in_tool", "arguments": arguments}
    return world.said("Closer.", "tool_calls", tool_calls=[{"id": "x", "type": "function", "function": function}])


CROP = json.dumps({"bbox_2d": world.BOX})
BEHAVIOURS: Mapping[str, world.Behaviour] = {
    "good": lambda turn: world.said(world.ANSWER) if turn else called(CROP),
    "wrong": lambda turn: world.said("<answer>N</answer>"),
    "bad_arguments": lambda turn: world.said(world.ANSWER) if turn else called('{"bbox_2d": [1, 2'),
    "refuses": lambda turn: world.said(None, refusal="I can't help with that."),
    "only_thinks": lambda turn: world.said("", "length"),
    "filtered": lambda turn: world.said("", "content_filter"),
    "half_json": lambda turn: Reaction(raw=b'{"choices": [{"message": {"cont'),
}
NAMES = [*BEHAVIOURS, "busy"]  # busy: 429 first, then as good


@pytest.fixture
def home(tmp_path: Path) -> Path:
    truth = {"boxes": [{"label": "tag", "box": world.BOX}], "choices": ["K", "N"]}
    with ArtifactStore(tmp_path / "artifacts").draft("data", "dataset", seed=0, stage="synth") as draft:
        rows = [
            (
                Sample(name, "zoom", "answer", "test", f"Which letter is on the tag of {name}?", "K", (), (), truth),
                [encode_png(make_pixels(number))],
            )
            for number, name in enumerate(NAMES)
        ]
        records.write_samples(draft.path / "answer-test.parquet", rows)
        draft.commit()
    return tmp_path / "artifacts"


def config(home: Path, url: str | None, name: str = "other", **changes: Any) -> stage.Config:
    own = {key: changes.pop(key) for key in list(changes) if key in Baseline.__dataclass_fields__ and key != "prompt"}
    baseline = Baseline(**({"url": url, "patience": world.QUICK, "prompt": NATIVE_PROMPT} | own))
    fields: dict[str, Any] = {
        "data": "data:v1",
        "model": "gpt-x",
        "policy": "endpoint",
        "endpoint": baseline,
        "forms": ("answer",),
        "prompt": PROMPT,
        "signals": {"answer": answer.measure, "usage": usage.measure, "format": format_rule.measure},
        "metrics": {},
        "rewards": {"tool": toolsrl.stage1, "answer": toolsrl.stage2},
        "tool_term": toolsrl.tool_reward,
        "dtype": "float32",
        "env": native_card,
        "limits": Limits(max_turns=3, max_tokens=4000, max_turn_tokens=200),
        "images": ImageLimits(1, 10**6),
    }
    job = {"home": str(home), "name": name, "eval": {"calls": baseline.calls, "tools": changes.get("tools")}}
    return stage.Config(**with_agent({"temperature": 0.0} | fields | changes), job=job)


def found(artifact: Artifact) -> dict[str, Scored]:
    return {s.trajectory.sample.id: s for s in records.read(artifact.path / "trajectories.jsonl", Scored)}


def asked(server: JudgeServer, name: str) -> list[Body]:
    return [body for body in server.requests if world.row_of(body) == name]


def test_a_model_behind_an_endpoint_is_scored_by_the_same_rules(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHERS_KEY", "sk-secret")
    with world.server(BEHAVIOURS) as server:
        made = stage.run(config(home, server.url, key_env="OTHERS_KEY"))
        assert set(server.keys) == {"Bearer sk-secret"}
        first, second = asked(server, "good")
        assert len(asked(server, "busy")) == 3  # told to wait once, then asked again
        assert stage.run(config(home, server.url, key_env="OTHERS_KEY")).ref == made.ref
    assert [p.ref for p in made.manifest.parents] == ["data:v1"]
    summary = made.manifest.summary
    assert summary["label"] == "gpt-x"
    assert (summary["answer.all.accuracy"], summary["answer.all.accuracy.n"]) == (3 / 7, 7.0)
    assert summary["answer.all.broken"] == 1.0
    assert "answer.all.tokens" not in summary  # not zero
    assert not [p for p in made.path.rglob("*") if p.is_file() and b"sk-secret" in p.read_bytes()]

    scored = found(made)
    broken = scored["half_json"].trajectory
    assert broken.stop is Stop.BROKEN and "no chat completion" in str(broken.error)
    refused = scored["refuses"]
    assert refused.trajectory.stop is Stop.ANSWERED and refused.signals.values["answer_correct"] == 0
    assert refused.trajectory.policy_turns[0].text == "I can't help with that."
    assert scored["only_thinks"].trajectory.stop is Stop.MAX_TOKENS
    assert scored["filtered"].trajectory.stop is Stop.ANSWERED
    assert [r.status for r in scored["good"].trajectory.results] == ["ok"]
    assert [r.status for r in scored["bad_arguments"].trajectory.results] == ["error"]
    for each in (s.trajectory for s in scored.values()):
        assert each.prompt_ids == () and each.length == 0  # texts alone: nothing was sampled by a model of ours
        assert all(turn.completion.logprobs == () for turn in each.policy_turns)
    assert scored["good"].signals.values["policy_tokens"] is None
    rows = list(records.read(made.path / "series" / "00.jsonl", Row))
    assert {row.tokens for row in rows} == {None}

    assert {tool["function"]["name"] for tool in first["tools"]} == set(ALL_TOOLS)
    assert first["messages"][0]["content"] == "Look closely."
    assert first["model"] == "gpt-x" and first["temperature"] == 0.0
    assistant, tool, user = second["messages"][2:]
    assert assistant["content"] == "Closer."
    (call,) = assistant["tool_calls"]
    assert call["function"] == {"name": "image_zoom_in_tool", "arguments": CROP}
    assert tool == {"role": "tool", "tool_call_id": call["id"], "content": "image 1"}
    assert [part["type"] for part in user["content"]] == ["image_url"]


def test_calls_may_be_text_and_tools_may_be_left_out(home: Path) -> None:
    texts = {"good": world.turns(world.crop(world.BOX), world.ANSWER)}
    with world.server(texts) as server:
        made = stage.run(config(home, server.url, calls="text", max_samples=1))
        first, second = server.requests
        assert "tools" not in first and "image_zoom_in_tool bbox_2d" in first["messages"][0]["content"]
        assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
        assert second["messages"][2]["content"] == world.crop(world.BOX)
        assert found(made)["good"].signals.values["calls_ok"] == 1
    plain = {"good": world.turns(world.ANSWER)}
    with world.server(plain) as server:
        made = stage.run(config(home, server.url, "plain", tools="none", max_samples=1))
        (request,) = server.requests
    assert "tools" not in request and found(made)["good"].trajectory.sample.tools == ()
    assert made.manifest.summary["answer.all.accuracy"] == 1.0


def test_a_budget_ends_the_command_and_what_was_answered_is_not_asked_again(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    right = dict.fromkeys(NAMES, world.turns(world.ANSWER))
    with world.server(right) as server:
        spare = {"patience": world.QUICK, "budget": Budget(money=0.0016), "price": Price(1.0, 1.0), "memory": "off"}
        with pytest.raises(BudgetSpentError, match=r"the budget is spent: \d+ tokens, 0\.00\d+ USD"):
            stage.run(config(home, server.url, concurrency=1, **spare))
        before = len(server.requests)
        assert 0 < before < len(NAMES)
        with pytest.raises(BudgetSpentError):  # another run has its whole budget for what is not stored
            stage.run(config(home, server.url, "another", concurrency=1, **spare))
        assert len(server.requests) == 2 * before
        assert f"{before} turns were answered by the file of replies, at no cost" in capfd.readouterr().err
        made = stage.run(config(home, server.url, concurrency=1))
        names = [world.row_of(body) for body in server.requests]
    assert sorted(names) == sorted([*NAMES, "busy"])
    assert made.manifest.summary["answer.all.accuracy.n"] == len(NAMES)


def test_a_key_that_is_refused_ends_the_run_and_says_what_to_set(home: Path) -> None:
    with (
        JudgeServer(lambda body, number: Reaction(raw=b"no", status=401)) as server,
        pytest.raises(EngineError, match=r"status 401 .*OTHERS_KEY"),
    ):
        stage.run(config(home, server.url, key_env="OTHERS_KEY"))


def code_card() -> EnvCard:
    return EnvCard("code", native_card().open)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": None}, r"eval\.policy=endpoint needs eval\.endpoint\.url"),
        ({"url": "host:8000"}, r"eval\.endpoint\.url must be the base URL"),
        ({"env": code_card}, r"the environment code has no native tools .* Set eval\.endpoint\.calls=text"),
        ({"budget": Budget(money=2.0)}, r"eval\.endpoint\.budget\.money=2 needs both prices above 0"),
        ({"parameters": {"tools": []}}, r"eval\.endpoint\.parameters may not set tools"),
    ],
)
def test_what_cannot_work_is_refused_at_once(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **({"url": "http://127.0.0.1:9/v1"} | changes))


def test_several_calls_have_an_answer_each_and_unreadable_ones_stay_text() -> None:
    def content(parts: Sequence[str | int]) -> Any:
        return list(parts)

    two = '<tool_call>{"name": "a", "arguments": {}}</tool_call>' * 2
    error, image = (
        ("<tool_response>\nError: one call\n</tool_response>",),
        ("<tool_response>\n", 3, "\nleft</tool_response>"),
    )
    turns = [ChatMessage("user", ["q", 0]), ChatMessage("assistant", [f"two {two}"]), ChatMessage("user", [*error])]
    turns += [ChatMessage("assistant", ["<tool_call>{bad</tool_call>"]), ChatMessage("user", [*image])]
    roles = native(turns, content)
    assert [m["role"] for m in roles] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert roles[1]["content"] == "two" and len({c["id"] for c in roles[1]["tool_calls"]}) == 2
    assert [m["tool_call_id"] for m in roles[2:4]] == [c["id"] for c in roles[1]["tool_calls"]]
    assert {m["content"] for m in roles[2:4]} == {"Error: one call"}
    assert roles[4] == {"role": "assistant", "content": ["<tool_call>{bad</tool_call>"]}
    assert roles[5] == {"role": "user", "content": [*image]}
