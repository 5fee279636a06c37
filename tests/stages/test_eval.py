"""``vtcli eval`` on a real dataset artifact, with a real (random) tiny model and with the scripted best tool use."""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import ALL_TOOLS, native_card
from judge_server import JudgeServer, Reaction, honest
from moments import recorded
from sizes import default_size

from stages import eval as stage
from tests.support.agents import with_agent
from vtcli.config import commandline
from vtcli.data.generators import count, read_value, rotflip, zoom
from vtcli.engines.scripted import OraclePolicy
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.judging.model import open_judge
from vtcli.protocols import Request
from vtcli.report import folder, side_by_side
from vtcli.rewards import toolsrl
from vtcli.rollout.loop import Limits
from vtcli.schema import Completion, Sample, Scored, Signals, Stop, Verdict
from vtcli.session import session
from vtcli.session.memory import RolloutRecord
from vtcli.signals import answer, boxes, evidence, orientation, primitives, usage
from vtcli.signals import format as format_rule
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageLimits, ImageStore, encode_png

PROMPT = {
    "style": "compact",
    "system": "image {size}\n{tools}",
    "tool_question": "{question}",
    "answer_question": "{question}",
}
SIGNALS = {
    name: module.measure
    for name, module in {
        "answer": answer,
        "format": format_rule,
        "usage": usage,
        "boxes": boxes,
        "orientation": orientation,
        "primitives": primitives,
    }.items()
}
GENERATORS = (rotflip, zoom, read_value, count)
ITEMS = 3


def write_data(home: Path) -> Artifact:
    with ArtifactStore(home).draft("data", "dataset", seed=0, stage="synth") as draft:
        for form in ("tool", "answer"):
            rows = []
            for task in GENERATORS:
                for i in range(ITEMS):
                    item = task.generate(0, i, "test", default_size(task.generate), form=form)
                    question, text = (
                        (item.tool_question, item.tool_answer) if form == "tool" else (item.question, item.answer)
                    )
                    tools = item.tools if form == "tool" else ALL_TOOLS
                    sample = Sample(item.id, item.task, form, "test", question, text, (), tools, item.truth)
                    rows.append((sample, [encode_png(item.pixels)]))
            records.write_samples(draft.path / f"{form}-test.parquet", rows)
        return draft.commit()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact store with a dataset and a random tiny model."""
    from vtcli.families.qwen_vl import tiny

    home = tmp_path_factory.mktemp("eval") / "artifacts"
    write_data(home)
    sizes = tiny.TinyModel(
        vocab_size=400, hidden_size=48, layers=1, heads=2, kv_heads=1, intermediate_size=64,
        vision_hidden_size=32, vision_depth=1, vision_heads=2, vision_intermediate_size=48,
    )  # fmt: skip
    tokenizer = tiny.train_tokenizer(
        ["In which corner is the red stamp? top-left <answer>K</answer>"] * 3, sizes.vocab_size
    )
    with ArtifactStore(home).draft("model", "model", seed=0, stage="sft") as draft:
        tiny.build(draft.path, sizes, tokenizer, seed=0)
        tiny.build(draft.path / "phases" / "tools", sizes, tokenizer, seed=0)
        log = [{"step": i, "phase": "tools" if i < 3 else "answers", "reward": i / 6} for i in range(6)]
        (draft.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
        draft.commit()
    return home


KEPT = ".work/eval-*/rollouts/*/*.jsonl"
"""With ``memory=off``: what attempts of one run remember."""


def config(home: Path, name: str, **changes: Any) -> stage.Config:
    fields: dict[str, Any] = {
        "data": "data:v1",
        "model": "model:v1",
        "prompt": PROMPT,
        "signals": SIGNALS,
        "metrics": {},
        "rewards": {"tool": toolsrl.stage1, "answer": toolsrl.stage2},
        "tool_term": toolsrl.tool_reward,
        "dtype": "float32",
        "env": native_card,
        "limits": Limits(max_turns=6, max_tokens=1500, max_turn_tokens=200, max_images=10),
        "images": ImageLimits(56 * 56, 112 * 112),
        "concurrency": 4,
    }
    fields |= changes
    job = {"home": str(home), "name": name, "eval": {k: v for k, v in fields.items() if isinstance(v, str | int)}}
    return stage.Config(**with_agent({"temperature": 0.0} | fields), job=job)


def scored(artifact: Artifact) -> list[Scored]:
    return list(records.read(artifact.path / "trajectories.jsonl", Scored))


def test_oracle_reaches_the_top_and_the_artifact_is_whole(home: Path) -> None:
    made = stage.run(config(home, "best", policy="oracle"))
    assert made.kind == "report"
    assert [p.ref for p in made.manifest.parents] == ["data:v1", "model:v1"]
    found = scored(made)
    assert len(found) == 2 * len(GENERATORS) * ITEMS
    assert {s.trajectory.stop for s in found} == {Stop.ANSWERED}
    summary = made.manifest.summary
    assert summary["answer.all.accuracy"] == 1.0 and summary["answer.all.accuracy.n"] == 12.0
    assert summary["tool.all.tool_reward"] >= 0.9
    assert summary["tool.all.broken"] == 0.0
    for name in {name for s in found for ref in s.trajectory.images for name in (ref.full, ref.view)}:
        assert (made.path / "images" / name[:2] / f"{name}.png").is_file()
    page = (made.path / "report.html").read_text()
    assert "Training" in page and "data:v1" in page and "digest" in page
    assert (made.path / "report.md").read_text().startswith("# oracle on held-out questions")
    metrics = json.loads((made.path / "metrics.json").read_text())
    assert [m["label"] for m in metrics["models"]] == ["oracle"]
    assert ArtifactStore(home).verify("best:v1") == []


def test_a_model_answers_from_what_the_oracles_calls_brought_back(home: Path) -> None:
    best = {
        s.trajectory.id: s.trajectory for s in scored(stage.run(config(home, "best2", policy="oracle", max_samples=4)))
    }
    made = scored(stage.run(config(home, "given", policy="oracle_calls", max_samples=4)))
    assert {s.trajectory.id for s in made} == best.keys()
    for trajectory in (s.trajectory for s in made):
        script = [turn.text for turn in best[trajectory.id].policy_turns]
        said = [turn.text for turn in trajectory.policy_turns]
        assert said[: len(script) - 1] == script[:-1] and len(said) >= len(script)
        drawn = trajectory.policy_turns[len(script) - 1].completion.logprobs  # the model's own; a script has 0
        assert min(drawn) < 0.0
    assert any(s.trajectory.policy_turns[-1].text != best[s.trajectory.id].policy_turns[-1].text for s in made)


def test_a_report_without_what_is_required_fails_the_command_also_when_it_is_found_again(home: Path) -> None:
    asked: dict[str, Any] = {"policy": "oracle", "max_samples": 2}
    made = stage.run(config(home, "needs", **asked, require=("answer.all.accuracy>=1", "tool.all.calls >= 0.5")))
    for name in ("needs", "more"):
        with pytest.raises(InputError, match=rf"{name}:v1 .*answer\.all\.accuracy is 1\.000.*eval\.require"):
            stage.run(config(home, name, **asked, require=("answer.all.accuracy<=0.9",)))
    assert stage.run(config(home, "needs", **asked)).ref == made.ref
    with pytest.raises(ConfigError, match=r"eval\.require: 'accuracy>0'"):
        config(home, "x", require=("accuracy>0",))


def test_the_header_names_the_phase_and_the_commands_are_the_users(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTCLI_HOME", "a home")
    argv = ["data=data:v1", "model=model@latest/phases/tools", "+recipe=codevision", "variant=code"]
    monkeypatch.setattr(stage, "running", lambda: commandline.written("eval", argv))
    made = stage.run(config(home, "phase", policy="oracle", model="model@latest/phases/tools", max_samples=2))
    text = (made.path / "report.md").read_text()
    assert "- model: model:v1/phases/tools\n" in text
    printed = text.partition("### Commands\n\n```\n")[2].partition("\n```")[0]
    assert shlex.split(printed) == ["VTCLI_HOME=a home", "vtcli", "eval", *argv]


def test_a_model_is_compared_with_its_baseline_question_by_question(home: Path) -> None:
    before = stage.run(config(home, "before", label="before", max_samples=5))
    found = scored(before)
    assert len(found) == 10
    assert all(s.verdict is not None or s.trajectory.stop is Stop.BROKEN for s in found)
    after = stage.run(config(home, "after", policy="oracle", label="after", max_samples=5, baseline="before:v1"))
    assert [p.ref for p in after.manifest.parents] == ["data:v1", "model:v1", "before:v1"]
    assert [e.label for e in folder.load_series(after.path)] == ["before", "after"]
    comparisons = json.loads((after.path / "metrics.json").read_text())["comparisons"]
    accuracy = next(c for c in comparisons if (c["measure"], c["task"]) == ("accuracy", "all"))
    assert (accuracy["before"], accuracy["after"]) == ("before", "after")
    assert accuracy["result"]["n"] == 5 and accuracy["result"]["only_before"] == 0
    assert accuracy["result"]["value"] > 0
    assert "Paired differences" in (after.path / "report.html").read_text()


def test_no_tools_probe_asks_plain_questions_without_tools(home: Path) -> None:
    made = stage.run(config(home, "probe", tools="none", max_samples=4, group_size=2, temperature=1.0))
    found = scored(made)
    assert {(s.trajectory.sample.form, s.trajectory.sample.tools) for s in found} == {("answer", ())}
    assert len(found) == 8
    assert len({s.trajectory.seed for s in found}) == 8
    assert made.manifest.summary["answer.all.calls.n"] == 4.0


def test_a_recipes_own_reward_sees_all_rollouts_of_a_question(home: Path) -> None:
    def counted(signals_G: Sequence[Signals]) -> list[Verdict | None]:
        return [Verdict(i + 10 * len(signals_G), {"place": i}) for i in range(len(signals_G))]

    changes = {"group_size": 3, "temperature": 1.0, "max_samples": 2, "forms": ("answer",)}
    made = stage.run(config(home, "own", rewards={"answer": counted}, **changes))
    found = [s for s in scored(made) if s.verdict]
    assert sorted(s.reward for s in found) == [30, 30, 31, 31, 32, 32]
    assert made.manifest.summary["answer.all.reward"] == 31.0


def test_a_reward_that_asks_what_the_rows_do_not_say_ends_the_run_at_once(home: Path) -> None:
    def asks(signals_G: Sequence[Signals]) -> list[Verdict | None]:
        raise ConfigError("the truth does not say if there is something to search")

    given = config(home, "asks", policy="oracle", concurrency=1, rewards={"tool": asks, "answer": asks}, memory="off")
    before = set(home.glob(KEPT))
    with pytest.raises(ConfigError, match="something to search"):
        stage.run(given)
    (log,) = set(home.glob(KEPT)) - before
    assert len(list(records.read(log, RolloutRecord))) == 1  # of 24 questions
    shutil.rmtree(log.parents[2])  # other tests look for their own


def test_the_same_command_again_finds_its_report(home: Path) -> None:
    wanted = config(home, "again", policy="oracle", max_samples=2)
    assert stage.run(wanted).ref == stage.run(wanted).ref == "again:v1"


def test_broken_rollouts_are_data(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def add(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ImageStore, "add", add)  # what a tool made cannot be kept
    asked: dict[str, Any] = {"policy": "oracle", "max_samples": 3, "memory": "off"}
    with pytest.raises(EngineError, match=r"agent\.max_broken=0%.*No space left"):
        stage.run(config(home, "broken", **asked, max_broken=0.0))
    assert not (home / "broken").exists()
    made = stage.run(config(home, "broken", **asked, max_broken=1.0))
    assert "rollouts broke. The commonest reason" in capfd.readouterr().err
    summary = made.manifest.summary
    assert summary["answer.all.broken"] > 0
    measured = summary.get("answer.all.accuracy.n", 0.0)
    assert measured + summary["answer.all.broken"] == 3.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "nothing:v1"}, "vtcli synth"),
        ({"data": "model:v1"}, "dataset"),
        ({"model": "data:v1"}, "model"),
        ({"split": "validation"}, "tool-test"),
    ],
)
def test_wrong_inputs_say_what_to_do(home: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        stage.run(config(home, "wrong", **changes))


def test_a_limit_below_every_prompt_is_refused_before_a_model_is_loaded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(session, "open_policy", never)
    limits = Limits(max_turns=1, max_tokens=5, max_turn_tokens=5, max_images=10)
    with pytest.raises(ConfigError, match=r"^eval\.agent\.limits\.max_tokens: .*5"):
        stage.run(config(home, "roomless", limits=limits))


def test_a_baseline_on_other_data_is_refused(home: Path, tmp_path: Path) -> None:
    with ArtifactStore(home).draft("other", "report", config={"benchmark": {"mine": {}}}) as draft:
        (draft.path / "series.json").write_text("[]")
        other = draft.commit()
    with pytest.raises(InputError, match="not measured on data:v1"):
        stage.run(config(home, "wrong", baseline="other:v1"))
    side_by_side.require_common(other, None, ["mine", "vstar"])
    with pytest.raises(InputError, match=r"other:v1 .*vstar, hrbench_4k"):
        side_by_side.require_common(other, None, ["vstar", "hrbench_4k"])


def test_settings_that_cannot_work_are_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match="forms"):
        config(home, "wrong", forms=("essay",))
    with pytest.raises(ConfigError, match="temperature"):
        config(home, "wrong", group_size=4)


def test_a_judge_that_goes_wrong_stops_the_eval_and_is_asked_again_when_it_is_mended(home: Path) -> None:
    def confused(body: dict[str, Any], number: int) -> Reaction:
        """Passes its trial, and then says nothing that can be read."""
        return honest(body) if number < 10 else Reaction("Hard to say.")

    def judged(server: JudgeServer, name: str = "judged") -> Artifact:
        judge = partial(open_judge, url=server.url, model="m", parameters={})
        changes = {
            "signals": {**SIGNALS, "evidence": evidence.measure},
            "judge": judge,
            "max_samples": 4,
            "memory": "off",
        }
        return stage.run(config(home, name, policy="oracle", forms=("answer",), **changes))

    told = r"eval .*: the judge m gave no verdict on \d+\.\d% .*Hard to say"
    with JudgeServer(confused) as server, pytest.raises(EngineError, match=told):
        judged(server)
    (rolled,) = home.glob(KEPT)
    before = {s.trajectory.id: s for s in records.read(rolled, RolloutRecord)}
    assert any(s.signals.values["unjudged"] for s in before.values())
    with JudgeServer(honest) as server:
        after = {s.trajectory.id: s for s in scored(judged(server))}
        assert len(server.requests) == 10 + asked(after)
    assert {i: s.trajectory for i, s in after.items()} == {i: s.trajectory for i, s in before.items()}
    assert not any(s.signals.values["unjudged"] for s in after.values())
    assert {s.signals.values["evidence_by"] for s in after.values()} == {"m"}


def asked(found: Mapping[str, Scored]) -> int:
    """How many different images of tools there are."""
    return len({(s.trajectory.sample.question, ref.view) for s in found.values() for ref in s.trajectory.images[1:]})


def contents(report: Artifact) -> dict[str, bytes]:
    """Every file of a report, without the wall time of calls, which no two runs share."""
    files = {str(p.relative_to(report.path)): p.read_bytes() for p in report.path.rglob("*") if p.is_file()}
    del files["manifest.json"]
    return {name: re.sub(rb'"wall_s": [0-9.e-]+', b"", data) for name, data in files.items()}


@pytest.mark.slow
def test_shards_are_put_together_to_what_one_run_gives(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {"group_size": 2, "temperature": 1.0, "max_samples": 5, "label": "policy"}
    drawn["memory"] = "off"  # each shard rolls out by itself
    drawn["concurrency"] = 1  # what is computed beside a rollout moves the last bit of its log-probabilities
    monkeypatch.setattr(stage, "running", lambda: "vtcli eval eval.label=policy")
    whole = stage.run(config(home, "at-once", **drawn))
    with pytest.raises(InputError, match=r"eval\.merge=3: .* 1/3, 2/3, 3/3 .*'1/3'"):
        stage.run(config(home, "parts", merge=3, **drawn))
    made = [stage.run(config(home, "parts", shard=f"{n}/3", **drawn)) for n in (1, 2, 3)]
    assert [shard.ref for shard in made] == [f"parts-shard-{n}-of-3:v1" for n in (1, 2, 3)]
    assert [len(scored(shard)) for shard in made] == [8, 8, 4]  # of 5 questions in each of two forms

    with pytest.raises(InputError, match="1/3, 2/3, 3/3"):
        stage.run(config(home, "parts", merge=3, **drawn, top_k=5))
    monkeypatch.setattr(session, "open_policy", lambda *given: pytest.fail("a model was loaded"))
    monkeypatch.setattr(stage, "running", lambda: "vtcli eval eval.merge=3 eval.label=policy")
    merged = stage.run(config(home, "parts", merge=3, **drawn))
    assert merged.ref == "parts:v1" and {p.ref for p in merged.manifest.parents} >= {shard.ref for shard in made}
    assert contents(merged) == contents(whole)
    assert merged.manifest.summary == whole.manifest.summary
    assert stage.run(config(home, "parts", merge=3, **drawn)).ref == merged.ref
    with pytest.raises(InputError, match=r"data:v1, split test, .* 7/7"):
        stage.run(config(home, "parts", shard="7/7", **drawn))


def test_a_killed_shard_goes_on_and_broken_rollouts_are_not_asked_again_by_the_merge(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = {"policy": "oracle", "memory": "off"}
    whole = stage.run(config(home, "killed-at-once", **fresh))
    with recorded(home) as recorder:
        stage.run(config(home, "killed", shard="1/2", **fresh))
    recorder.first("rollouts/*/*.jsonl", lambda data: data.count(b"\n") == 7).restore()
    asked = set[int]()

    class Witness(OraclePolicy):
        async def complete(self, request: Request) -> Completion:
            asked.add(request.rollout)
            return await super().complete(request)

    monkeypatch.setattr(stage, "OraclePolicy", Witness)
    made = stage.run(config(home, "killed", shard="1/2", **fresh))
    assert len(scored(made)) == 12 and len(asked) == 12 - 7
    other = stage.run(config(home, "killed", shard="2/2", **fresh))
    merged = stage.run(config(home, "killed", merge=2, **fresh))
    assert len(asked) == 12 - 7 + 12
    assert contents(merged) == contents(whole)
    assert {s.trajectory.id for s in scored(made)}.isdisjoint(s.trajectory.id for s in scored(other))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard": "0/4"}, r"eval\.shard: expected a text such as 3/16"),
        ({"shard": "4"}, r"eval\.shard: expected a text such as 3/16"),
        ({"shard": "1/4", "merge": 4}, r"eval\.shard=1/4 and eval\.merge=4: expected at most one of the two"),
        ({"merge": 0}, r"eval\.merge=0: expected the number of shards"),
    ],
)
def test_shards_that_are_none_are_refused(home: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(home, "wrong", **changes)
