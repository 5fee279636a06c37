"""``vtcli synth`` with a teacher behind a real endpoint, which also lies, stalls, refuses and breaks off."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import teacher_server as world
import tiny_model
from fakes import env_card, native_card
from moments import recorded
from teacher_server import BOX

from stages import filter as filtering
from stages import synth as stage
from vtcli.engines.openai.ledger import Budget, Price
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.engines.teachers import distil, model
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.families.messages import encode_demo
from vtcli.filters import taught
from vtcli.filters.demonstrations import Keep
from vtcli.filters.facts import DemoSignals
from vtcli.protocols import Request
from vtcli.rollout.loop import Limits
from vtcli.schema import Completion
from vtcli.session.agent import Agent
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore
from vtcli.store.records import DemoSet

NAMES = [*world.BEHAVIOURS, "busy"]


def made(config: Any) -> Artifact:
    artifact = stage.run(config)
    assert artifact is not None
    return artifact


def said(artifact: Artifact) -> dict[str, Any]:
    return json.loads((artifact.path / "distillation.json").read_text())


def demos(artifact: Artifact, folder: Path, split: str = "train") -> DemoSet:
    return DemoSet(artifact, split, ImageStore(folder / "look"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "artifacts"
    world.write_rows(home, NAMES)
    return home


def test_only_what_is_right_and_verified_is_kept_and_the_rest_is_counted(home: Path, tmp_path: Path) -> None:
    with world.server() as server:
        artifact = made(world.config(home, server.url))
        told = said(artifact)
        assert told["kept"] == 3 and told["types"] == {"single_tool": 3}
        assert {k: v for k, v in told["dropped_rows"].items() if not k.startswith("broken")} == {
            "wrong answer": 1,
            "fewer than 1 calls were carried out": 1,
            "wrote an observation itself": 1,
            "no crop shows a true box": 1,
            "more than 0 failed calls": 2,
            "refused": 1,
            "ended by max_tokens": 1,
            "ended by max_turns": 1,
        }
        assert sum(told["broken_tries"].values()) == 2
        assert any("no chat completion" in reason for reason in told["broken_tries"])
        assert any("no reply within the time" in reason for reason in told["broken_tries"])
        found = demos(artifact, tmp_path)
        assert set(found.ids) == {"good-single_tool", "structured-single_tool", "busy-single_tool"}
        dropped = [json.loads(line) for line in (artifact.path / "dropped.jsonl").read_text().splitlines()]
        assert {line["id"] for line in dropped} == set(NAMES) - {"good", "structured", "busy"}
        lie = next(line for line in dropped if line["id"] == "liar")
        assert "I cropped the tag" in lie["tries"][0]["turns"][0] and lie["tries"][0]["results"] == []
        asked = Counter(map(world.row_of, server.requests))
        assert (asked["good"], asked["busy"], asked["half_call"], asked["endless"]) == (2, 3, 3, 4)

        before = len(server.requests)
        assert made(world.config(home, server.url)).ref == artifact.ref  # the same again: nothing is asked
        assert len(server.requests) == before
        again = made(world.config(home, server.url, keep=Keep(max_failed=1)))  # other rules, the same replies
        assert {world.row_of(body) for body in server.requests[before:]} == {"half_json", "silent"}
        assert said(again)["types"] == {"single_tool": 3, "error": 2}
        assert said(again)["usage"]["cached"] == said(again)["usage"]["requests"] - 1  # half_json is paid for again


def test_what_was_measured_of_a_try_is_what_filter_reads(home: Path) -> None:
    with world.server() as server:
        artifact = made(world.config(home, server.url, "facts", keep=Keep(max_failed=1)))
    facts = {fact.id: fact.values for fact in records.read(artifact.path / "taught.jsonl", DemoSignals)}
    assert len(facts) == 5
    assert {values["answer_correct"] for values in facts.values()} == {1}
    assert [entry["verified"] for entry in facts["good-single_tool"]["operations"]] == [True]
    table = pq.read_table(artifact.path / "train.parquet", columns=["id"]).column("id").to_pylist()
    liar = {"answer_correct": 1, "operations": [{"name": "crop", "image": 1, "verified": False}]}
    with ArtifactStore(home).draft("lied", "demos", seed=0, stage="synth") as draft:
        shutil.copytree(artifact.path, draft.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        records.append(draft.path / "taught.jsonl", [DemoSignals(table[0], liar)])  # the last line of an id counts
        lied = draft.commit()
    rules = {"right": taught.right, "verified": taught.verified}
    agent, job = Agent(env=native_card, prompt=world.PROMPT, signals={}), {"home": str(home), "name": "kept"}
    kept = filtering.run(filtering.Config(data=lied.ref, rules=rules, agent=agent, job=job))
    assert pq.read_table(kept.path / "train.parquet", columns=["id"]).column("id").to_pylist() == table[1:]
    assert (kept.path / "taught.jsonl").read_bytes() == (lied.path / "taught.jsonl").read_bytes()


def test_requests_are_the_policys_prompt_with_the_images_that_it_sees(home: Path) -> None:
    with world.server() as server:
        stage.run(world.config(home, server.url, rows=1))
        first, second = server.requests
    system, user = first["messages"]
    assert system["content"].startswith("image 112x112\nimage_zoom_in_tool")
    assert [part["type"] for part in user["content"]] == ["image_url", "text"]
    assert user["content"][1]["text"] == "Which letter is on the tag of good?"
    assert first["max_tokens"] == 200 and first["temperature"] == 1.0 and first["model"] == "t"
    roles = [message["role"] for message in second["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert second["messages"][2]["content"] == world.crop(world.BOX)
    seen = second["messages"][3]["content"]
    assert (
        "".join(part.get("text", "<image>") for part in seen) == "<tool_response>\n<image>\nimage 1\n</tool_response>"
    )


@pytest.mark.slow
def test_a_demonstration_is_learnt_where_the_teacher_wrote_and_not_where_its_call_failed(
    home: Path, tmp_path: Path
) -> None:
    with world.server() as server:
        artifact = made(world.config(home, server.url, keep=Keep(max_failed=1)))
        every = made(world.config(home, server.url, keep=Keep(max_failed=1), learn_failed=True))  # of stored replies
    chat = tiny_model.family().chat
    found = demos(artifact, tmp_path)
    for name in ("structured-single_tool", "wrong_tool-error"):
        demo = found.load(found.ids.index(name))
        row = encode_demo(demo, chat)
        learnt = chat.decode([i for i, m in zip(row.token_ids, row.mask, strict=True) if m]).text
        turns = [message["content"] for message in demo.messages if message["role"] == "assistant"]
        assert "<tool_call>" in turns[0] and turns[-1] == world.ANSWER
        assert learnt.replace("<|im_end|>", "") == "".join(turns[1:] if name.endswith("error") else turns)
        chat.check_images(row.token_ids, row.images)
    assert (
        "<think>I look closer.</think>" in found.load(found.ids.index("structured-single_tool")).messages[2]["content"]
    )
    wrong = found.load(found.ids.index("wrong_tool-error"))
    assert wrong.unlearnt == (2,) and wrong.messages[3]["content"].startswith("Error: there is no tool image_zom_tool")
    assert all(not demos(every, tmp_path).load(i).unlearnt for i in range(5))


def test_tries_end_with_the_first_that_is_kept_or_the_best_of_all_is_taken(home: Path) -> None:
    """The teacher's crop is loose at first, and close later."""
    world.write_rows(home / "few", ["one"])
    loose, close = [0, 0, 112, 112], world.BOX

    def server() -> Any:
        seeds: list[int] = []

        def react(body: dict[str, Any], number: int) -> Any:
            seeds.extend([body["seed"]] if len(body["messages"]) == 2 else [])
            if len(body["messages"]) > 2:
                return world.said(world.ANSWER)
            return world.said(world.crop(close if len(seeds) == 2 else loose))

        return world.JudgeServer(react)

    def crops(artifact: Artifact) -> int:
        return json.dumps(demos(artifact, home).load(0).messages[2]).count(str(close))

    with server() as first:
        artifact = made(world.config(home / "few", first.url, tries=3))
        assert (said(artifact)["tries"], crops(artifact)) == (1, 0)
    with server() as every:
        own = {"cache": str(home / "other.jsonl")}
        artifact = made(world.config(home / "few", every.url, "best", own, tries=3, choose="best", concurrency=1))
        assert (said(artifact)["tries"], crops(artifact)) == (3, 1)
        assert len({body["seed"] for body in every.requests}) == 6  # every turn of every try has its own


def test_a_budget_ends_the_run_and_more_of_it_goes_on_without_paying_twice(home: Path) -> None:
    price = {"price": Price(input=1000.0, output=5000.0)}  # a request: 0.1 and 0.1
    with world.server({"good": world.BEHAVIOURS["good"]}) as server:
        artifact = made(world.config(home, server.url, "some", price, budget=Budget(money=2.0), concurrency=3))
        told = said(artifact)
        assert told["money"] <= 2.0 and told["stopped"].startswith("the budget is spent")
        assert 0 < told["kept"] < len(NAMES)
        assert told["dropped_rows"] == {"not asked: the budget is spent": len(NAMES) - told["kept"]}
        paid = len(server.requests)
        all_of_it = said(made(world.config(home, server.url, "all", price, budget=Budget(tokens=100_000))))
        assert all_of_it["kept"] == len(NAMES) and all_of_it["stopped"] is None
        assert len(server.requests) == 2 * len(NAMES) + 1  # one 429
        assert all_of_it["usage"]["cached"] == paid - 1 or all_of_it["usage"]["cached"] == paid
        assert all_of_it["usage"]["input"] == 100 * 2 * len(NAMES)


def test_a_dry_run_says_the_cost_and_asks_nothing(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    price = {"price": Price(input=2.0, output=8.0, currency="EUR")}
    with world.server() as server:
        assert stage.run(world.config(home, server.url, "dry", price, dry_run=True, tries=2)) is None
        assert server.requests == []
    told = " ".join(capfd.readouterr().err.split())
    assert f"t: {len(NAMES)} rows" in told and "EUR" in told and "Nothing was asked" in told
    assert f"| expected, one try a row | {3 * len(NAMES)} " in told  # two calls and an answer
    assert f"| at most, by the limits | {4 * 2 * len(NAMES)} " in told
    assert not (home / "dry").exists() and not list(home.glob(".work/synth-*"))


def test_types_have_the_shares_that_were_asked_for(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with world.server() as server:
        wanted = {"single_tool": 0.5, "error": 0.5, "no_tool": 0.0, "multi_crop": 0.5}
        told = said(made(world.config(home, server.url, keep=Keep(max_failed=1), shares=wanted)))
    assert told["types"] == {"single_tool": 2, "error": 2}
    assert told["dropped_rows"]["more single_tool than its share"] == 1
    assert told["types_without_rows"] == ["multi_crop"]
    shown = " ".join(capfd.readouterr().err.split())
    assert "warning: synth.distil.shares asks for multi_crop, and no such row was kept." in shown


def test_held_out_rows_have_pictures_of_their_own(home: Path, tmp_path: Path) -> None:
    with world.server({"good": world.BEHAVIOURS["good"]}) as server:
        artifact = made(world.config(home, server.url, validation=0.3))
    train, aside = (demos(artifact, tmp_path, split) for split in ("train", "validation"))
    assert (len(train), len(aside)) == (10, 4) and not set(train.ids) & set(aside.ids)


def test_a_teacher_that_is_gone_or_keeps_nothing_ends_with_one_error(home: Path) -> None:
    with pytest.raises(EngineError, match=r"synth \(data:v1\): 100%.*ClientConnectorError"):
        stage.run(world.config(home, "http://127.0.0.1:9/v1", "gone"))
    with (
        world.server({"good": world.BEHAVIOURS["liar"]}) as server,
        pytest.raises(InputError, match="no row of data:v1 became a demonstration"),
    ):
        stage.run(world.config(home, server.url, "liars"))


def test_settings_that_cannot_work_are_refused(home: Path) -> None:
    for settings, message in (
        ({"data": None}, "give synth.distil.data="),
        ({"tries": 2, "temperature": 0.0}, "temperature 0"),
        ({"shares": {"tools": 1.0}}, "no type of demonstration is called"),
    ):
        with pytest.raises(ConfigError, match=message):
            world.config(home, "http://h/v1", **settings)
    with pytest.raises(ConfigError, match=r"teacher\.url "):
        stage.run(world.config(home, "nowhere"))
    with pytest.raises(ConfigError, match=r"synth\.distil\.budget\.money=2"):
        stage.run(world.config(home, "http://h/v1", budget=Budget(money=2.0)))
    with pytest.raises(ConfigError, match=r"teacher\.parameters .*messages"):
        stage.run(world.config(home, "http://h/v1", "x", {"parameters": {"messages": []}}))
    with pytest.raises(ConfigError, match=r"teacher\.parameters .*max_tokens"):
        stage.run(world.config(home, "http://h/v1", "x", {"parameters": {"max_tokens": None}}))


def test_a_share_of_first_calls_is_made_to_fail_and_is_not_learnt(home: Path, tmp_path: Path) -> None:
    def react(body: dict[str, Any], number: int) -> Any:
        seen = [m for m in body["messages"][2:] if isinstance(m["content"], list)]
        return world.said(world.ANSWER if seen else world.crop(BOX))

    with world.JudgeServer(react) as server:
        artifact = made(world.config(home, server.url, errors=0.5, keep=Keep(max_failed=1)))
    told = said(artifact)
    assert told["types"]["single_tool"] + told["types"]["error"] == len(NAMES) and 2 < told["types"]["error"] < 12
    found, errors = demos(artifact, tmp_path), set[str]()
    for index, name in enumerate(found.ids):
        demo = found.load(index)
        assert demo.unlearnt == ((2,) if name.endswith("error") else ())
        errors |= {demo.messages[3]["content"][:24]} if demo.unlearnt else set()
    assert len(errors) > 1 and all(text.startswith("Error: ") for text in errors)
    with pytest.raises(ConfigError, match=r"synth\.distil\.errors=0\.5 .*max_failed=0"):
        world.config(home, "http://h/v1", errors=0.5)


def test_a_model_of_ours_is_a_teacher_in_the_same_loop(home: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A scripted policy stands in for trained weights; chat, tools and rows are real."""
    family = tiny_model.family()
    with ArtifactStore(home).draft("model", "model", seed=0, stage="sft") as draft:
        shutil.copytree(family.folder, draft.path, dirs_exist_ok=True)
        draft.commit()

    class Scripted:
        version = 0

        async def complete(self, request: Request) -> Completion:
            turn = world.ANSWER if "<tool_response>" in family.chat.decode(request.token_ids).text else world.crop(BOX)
            return await ScriptedPolicy(family.chat, [turn]).complete(request)

        def close(self) -> None:
            closed.append(True)

    closed: list[bool] = []
    monkeypatch.setattr(model, "open_policy", lambda *_: Scripted())
    config = replace(
        world.config(home, "http://h/v1", rows=2, limits=Limits(max_turns=3, max_tokens=2000, max_turn_tokens=400)),
        teacher=partial(model.card, model="model@latest"),
    )
    artifact = made(config)
    assert (said(artifact)["kept"], said(artifact)["teacher"], closed) == (2, "model:v1", [True])
    assert {parent.ref for parent in artifact.manifest.parents} == {"data:v1", "model:v1"}
    assert said(artifact)["usage"]["requests"] == 4 and said(artifact)["usage"]["output"] > 0
    demo = demos(artifact, tmp_path).load(0)
    assert [m["role"] for m in demo.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert demo.messages[2]["content"] == world.crop(BOX)


CODE = {
    "good": "result = image.crop((28, 28, 56, 56))",
    "paints": "result = Image.new('RGB', (28, 28), 'red')",  # no crop, whatever it says of it
    "fails": "result = picture.crop((28, 28, 56, 56))",
}


@pytest.mark.slow
def test_code_of_a_teacher_is_run_and_its_operations_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "artifacts"
    world.write_rows(home, [*CODE, "structured"])

    def function(source: str) -> dict[str, Any]:
        return {"name": "code_image_tool", "arguments": {"code": source, "description": "crop", "image_index": 0}}

    def play(name: str) -> world.Behaviour:
        calls = [f"<tool_call>{json.dumps(function(CODE[name]))}</tool_call>"]
        calls += [f"<tool_call>{json.dumps(function(CODE['good']))}</tool_call>"] if name == "fails" else []
        return world.turns(*calls, world.ANSWER)

    own = function(CODE["good"])
    call = {"type": "function", "function": {"name": own["name"], "arguments": json.dumps(own["arguments"])}}
    plays = {name: play(name) for name in CODE} | {
        "structured": lambda n: world.said(world.ANSWER) if n else world.said("", tool_calls=[call])
    }
    with world.server(plays) as server:
        given = world.config(home, server.url, "code", keep=Keep(max_failed=1))
        artifact = made(replace(given, agent=replace(given.agent, env=partial(env_card, "codevision"))))
    told = said(artifact)
    assert told["types"] == {"single_tool": 2, "error": 1}
    assert told["dropped_rows"] == {"no crop shows a true box": 1}
    found = demos(artifact, tmp_path)
    monkeypatch.setattr(distil, "wrong_call", lambda *_: f"<tool_call>{json.dumps(own)}</tool_call>")
    with world.server(plays) as server:
        lucky = world.config(home, server.url, "lucky", keep=Keep(max_failed=1), errors=1.0)
        lucky = replace(lucky, agent=replace(lucky.agent, env=partial(env_card, "codevision")))
        with pytest.raises(InputError, match="no row of data:v1 became a demonstration"):
            made(lucky)
    told = capsys.readouterr()
    assert "the call that was made to fail did not" in " ".join((told.out + told.err).split())
    failed = found.load(found.ids.index("fails-error"))
    assert failed.unlearnt == (2,) and "NameError" in failed.messages[3]["content"]


def test_a_killed_run_goes_on_at_the_last_finished_turn_and_pays_nothing_twice(home: Path, tmp_path: Path) -> None:
    finished = 4
    with world.server({"good": world.BEHAVIOURS["good"]}) as server:
        given = world.config(home, server.url, "killed", {"cache": str(home / "cache.jsonl")}, concurrency=1)
        with recorded(home) as recorder:
            twin = made(given)
        wanted, before = (twin.path / "train.parquet").read_bytes(), len(server.requests)
        recorder.first("attempts.jsonl", lambda data: data.count(b"\n") == finished).restore()
        artifact = made(given)
        assert len(server.requests) - before <= 2 * (len(NAMES) - finished)
        # Every turn is answered once, but for the request that the kill cut off, and the 429.
        asked = Counter(json.dumps(body) for body in server.requests[before:])
        assert set(asked.values()) == {1}
        assert said(artifact)["kept"] == len(NAMES)
        assert said(artifact)["usage"]["requests"] == 2 * len(NAMES)
        assert ArtifactStore(home).verify(artifact.ref) == []
    assert (artifact.path / "train.parquet").read_bytes() == wanted
