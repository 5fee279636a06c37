"""``vtcli filter`` on real datasets with a real (random) tiny model: what stays, why, and what is measured once."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes import cut_image, native_card
from PIL import Image

from stages import eval as evaluation
from stages import filter as stage
from tests.support.agents import with_agent
from vtcli.benchmarks.benchmark import Benchmark, Format
from vtcli.config import compose
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.filters import contamination, duplicates, hashing, lengths, pass_rate, sizes, turns, verifiable
from vtcli.judging import rubrics
from vtcli.protocols import Sampling
from vtcli.rollout.loop import Limits, RolloutRequest
from vtcli.schema import Sample, Scored, Stop, Trajectory
from vtcli.session import memory
from vtcli.session.pass_rates import Rollouts
from vtcli.signals import answer
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageLimits, ImageStore, encode_png
from vtcli.store.records import Demo, SampleSet

PROMPT = {
    "style": "compact",
    "system": "image {size}\n{tools}",
    "tool_question": "{question}",
    "answer_question": "{question}",
}
QUESTIONS = 6
ROWS = {"image": sizes.images, "answer": lengths.answer, "duplicates": duplicates.exact}


async def by_seed(trajectory: Trajectory) -> Mapping[str, Any]:
    """Right or wrong by the rollout's seed: a fact that a random model gives, too."""
    return {"answer_correct": int(trajectory.seed % 3 > 0)}


def picture(shade: int, width: int = 56, height: int = 56) -> bytes:
    return encode_png(np.full((height, width, 3), shade, np.uint8))


def sample(name: str, split: str = "train", form: str = "answer", answer: str = "3") -> Sample:
    return Sample(name, "count", form, split, f"How many in {name}?", answer, (), (), {"value": [3], "total": 5})


def write_data(home: Path) -> None:
    """Six good questions; one that is there twice, one too narrow for the model, one without an answer."""
    rows = [(sample(f"q{i}"), [picture(i)]) for i in range(QUESTIONS)]
    twice = Sample("twice", "count", "answer", "train", rows[0][0].question, "4", (), (), {"value": [4], "total": 5})
    bad = [(twice, [picture(0)]), (sample("narrow"), [picture(9, 1, 201)]), (sample("mute", answer=""), [picture(8)])]
    with ArtifactStore(home).draft("data", "dataset", seed=0, stage="synth") as draft:
        records.write_samples(draft.path / "answer-train.parquet", [*rows[:3], *bad, *rows[3:]])
        records.write_samples(draft.path / "answer-test.parquet", [(sample("t0", "test"), [picture(0)])])
        draft.commit()
    messages = ({"role": "user", "content": "<image>Where?"}, {"role": "assistant", "content": "Here."})
    with ArtifactStore(home).draft("demos", "demos", seed=0, stage="synth") as draft:
        shown = [(Demo(f"d{i}", messages, ()), [picture(i % 2)]) for i in range(4)]
        records.write_demos(draft.path / "train.parquet", shown)
        records.write_demos(draft.path / "validation.parquet", shown[:1])
        draft.commit()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vtcli.families.qwen_vl import tiny

    home = tmp_path_factory.mktemp("filter") / "artifacts"
    write_data(home)
    sizes_of = tiny.TinyModel(
        vocab_size=400, hidden_size=48, layers=1, heads=2, kv_heads=1, intermediate_size=64,
        vision_hidden_size=32, vision_depth=1, vision_heads=2, vision_intermediate_size=48,
    )  # fmt: skip
    tokenizer = tiny.train_tokenizer(["How many in q? <answer>3</answer>"] * 3, sizes_of.vocab_size)
    with ArtifactStore(home).draft("model", "model", seed=0, stage="sft") as draft:
        tiny.build(draft.path, sizes_of, tokenizer, seed=0)
        draft.commit()
    return home


def config(home: Path, name: str, **changes: Any) -> stage.Config:
    fields: dict[str, Any] = {
        "data": "data:v1",
        "model": "model:v1",
        "prompt": PROMPT,
        "signals": {"answer": by_seed},
        "env": native_card,
        "dtype": "float32",
        "rules": ROWS | {"pass_rate": pass_rate.mixed},
        "rollouts": Rollouts(group_size=4),
        "limits": Limits(max_turns=1, max_tokens=600, max_turn_tokens=6),
        "images": ImageLimits(56 * 56, 112 * 112),
    }
    fields |= changes
    own = {k: v for k, v in fields.items() if isinstance(v, str | int)}
    own |= {"rules": {k: repr(v) for k, v in fields["rules"].items()}, "rollouts": repr(fields["rollouts"])}
    return stage.Config(**with_agent(fields), job={"home": str(home), "name": name, "filter": own})


def ids(artifact: Artifact, file: str = "answer-train") -> list[str]:
    return pq.read_table(artifact.path / f"{file}.parquet", columns=["id"]).column("id").to_pylist()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def count_rollouts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The samples' ids of all rollouts from now on."""
    from vtcli.rollout import stream

    asked: list[str] = []
    original = stream.rollout

    async def counted(request: RolloutRequest, *rest: Any) -> Trajectory:
        asked.append(request.sample.id)
        return await original(request, *rest)

    monkeypatch.setattr(stream, "rollout", counted)
    return asked


def test_rows_without_a_model_and_the_files_that_come_out(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = stage.run(config(home, "rows", rules=ROWS, model=None))
    assert made.kind == "dataset"
    assert ids(made) == [f"q{i}" for i in range(QUESTIONS)]
    assert ids(made, "answer-test") == ["t0"]  # another split: as it was
    before, after = (pq.ParquetFile(home / p / "v1" / "answer-train.parquet") for p in ("data", "rows"))
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    assert {line["id"]: line["rule"] for line in lines(made.path / "dropped.jsonl")} == {
        "twice": "duplicates",
        "narrow": "image",
        "mute": "answer",
    }
    said = json.loads((made.path / "filter.json").read_text())
    assert (said["rows"], said["kept"], said["policy"]) == (9, 6, None)
    assert [(r["rule"], r["seen"], r["dropped"]) for r in said["rules"]] == [
        ("image", 9, 1),
        ("answer", 8, 1),
        ("duplicates", 7, 1),
    ]
    assert "6 of 9 rows kept" in capfd.readouterr().err
    assert ArtifactStore(home).verify(made.ref) == []
    loaded = SampleSet(made, "answer", "train", ImageStore(home.parent / "look"))
    assert loaded.load(0).question == "How many in q0?"
    assert stage.run(config(home, "rows", rules=ROWS, model=None)).ref == made.ref  # reused


def test_a_near_copy_goes_and_its_hash_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A photograph, once more as a JPEG; the two pictures without structure are equal alone."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    photo = Image.fromarray(noise).resize((96, 96), Image.Resampling.BICUBIC)
    png, jpeg = io.BytesIO(), io.BytesIO()
    photo.save(png, "PNG")
    photo.save(jpeg, "JPEG", quality=40)
    again = dataclasses.replace(sample("again"), question=" how many in first ")
    shown = [(sample("first"), [png.getvalue()]), (again, [jpeg.getvalue()]), (sample("flat"), [picture(3)])]
    with ArtifactStore(tmp_path).draft("data", "dataset", seed=0, stage="synth") as draft:
        records.write_samples(draft.path / "answer-train.parquet", shown)
        draft.commit()
    made = stage.run(config(tmp_path, "near", rules=ROWS | {"near": duplicates.near}, model=None))
    assert ids(made) == ["first", "flat"]
    (gone,) = lines(made.path / "dropped.jsonl")
    assert (gone["rule"], gone["id"], gone["as"]) == ("near", "again", {"source": "answer-train", "id": "first"})
    stored = {line["sha256"]: line["hash"] for line in lines(made.path / "facts" / "image_hash.jsonl")}
    assert list(stored) == [hashlib.sha256(data[0]).hexdigest() for _, data in shown]
    monkeypatch.setattr(hashing.StoredHashes, "put", None)  # a second rule finds them all
    assert (made.path / "pairs.png").is_file()
    stricter = {"near": partial(duplicates.near, max_bits=0)}
    assert ids(stage.run(config(tmp_path, "near", rules=ROWS | stricter, model=None)))[0] == "first"


def test_a_row_that_shows_a_held_out_image_goes(home: Path) -> None:
    """The test question's picture is that of q0 and of the row that has it twice."""
    rules = {"contamination": contamination.against, "answer": lengths.answer}
    made = stage.run(config(home, "unseen", rules=rules, model=None, against=("data:v1",)))
    assert ids(made) == ["q1", "q2", "narrow", "q3", "q4", "q5"]
    first, _, mute = lines(made.path / "dropped.jsonl")
    assert (first["id"], first["as"], mute["id"]) == ("q0", {"source": "data:v1/answer-test", "id": "t0"}, "mute")
    assert [parent.ref for parent in made.manifest.parents] == ["data:v1"]


def test_a_pass_rate_is_what_eval_measures_and_is_measured_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_rollouts(monkeypatch)
    made = stage.run(config(home, "mixed"))
    assert len(asked) == 4 * QUESTIONS
    facts = {line["id"]: line for line in lines(made.path / "facts" / "pass_rate.jsonl")}
    asked.clear()
    clean = stage.run(config(home, "rows", rules=ROWS, model=None))  # eval refuses the image that is too narrow
    report = evaluation.run(
        evaluation.Config(
            data=clean.ref, model="model:v1", agent=replace(config(home, "mixed").agent, max_broken=1.0), metrics={},
            forms=("answer",), split="train", group_size=4, job={"home": str(home), "name": "report"},
            rewards={"answer": lambda signals: [None] * len(signals)}, tool_term=lambda signals: None,
        )
    )  # fmt: skip
    assert not set(asked) & set(facts)  # the evaluation asks only what the filter did not
    right = dict.fromkeys(facts, 0)
    for scored in records.read(report.path / "trajectories.jsonl", Scored):
        if scored.trajectory.sample.id in right and scored.trajectory.stop is not Stop.BROKEN:
            right[scored.trajectory.sample.id] += scored.signals.values["answer_correct"]
    assert {name: fact["right"] for name, fact in facts.items()} == right
    assert set(ids(made)) == {name for name, count in right.items() if 0 < count < 4}
    one = next(iter(facts.values()))
    assert one["low"] < one["rate"] + 1e-9 and one["rate"] < one["high"] + 1e-9 and one["judged"] == 4
    said = json.loads((made.path / "filter.json").read_text())
    assert sum(bar["questions"] for bar in said["pass_rate"]["histogram"]) == QUESTIONS

    asked.clear()
    band = {"pass_rate": partial(pass_rate.band, max_rate=0.5)}
    stage.run(config(home, "band", rules=ROWS | band))
    assert asked == []  # another rule, the same facts
    longer = stage.run(config(home, "longer", rules=ROWS | band, rollouts=Rollouts(group_size=6)))
    assert len(asked) == 2 * QUESTIONS  # goes on where four had been
    again = {line["id"]: line["outcomes"][:4] for line in lines(longer.path / "facts" / "pass_rate.jsonl")}
    assert again == {name: fact["outcomes"] for name, fact in facts.items()}


def test_remembered_answers_are_scored_by_todays_rules(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {
        "signals": {"answer": answer.measure},
        "rules": ROWS | {"band": pass_rate.band},
        "seed": 77,
    }

    def outcomes(name: str) -> list[list[str]]:
        made = stage.run(config(home, name, **changes))
        return [line["outcomes"] for line in lines(made.path / "facts" / "pass_rate.jsonl")]

    before = set(home.glob(".rollouts/*/*.jsonl"))
    first = outcomes("scored")
    (path,) = set(home.glob(".rollouts/*/*.jsonl")) - before
    assert {outcome for row in first for outcome in row} == {"wrong"}
    asked = count_rollouts(monkeypatch)
    kept = lines(path)
    for line in kept:
        line["value"]["signals"]["values"]["answer_correct"] = 1.0
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert outcomes("trusted") == [["right"] * 4] * QUESTIONS
    monkeypatch.setattr(memory, "scoring_source", lambda: "later code")
    assert outcomes("again") == first and asked == []
    assert outcomes("once") == first and len(list(home.glob(".rollouts/*/*.jsonl"))) == len(before) + 2


async def by_tools(trajectory: Trajectory) -> Mapping[str, Any]:
    """q1 and q3 need no tool; of the others, q0 and q2 are right where tools are on offer."""
    right = ("q0", "q1", "q2") if trajectory.sample.tools else ("q1", "q3")
    return {"answer_correct": int(trajectory.sample.id in right)}


def test_questions_that_need_the_tool(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["filter=needs_tool", "scale=tiny", "data=data:v1", "model=model:v1"]
    rules = compose.build(stage.Config, compose.load("filter", argv)).rules
    asked = count_rollouts(monkeypatch)
    for early in (False, True):
        changes = {
            "signals": {"answer": by_tools},
            "rollouts": Rollouts(group_size=2, early_stop=early),
            "seed": 20 + early,
        }
        made = stage.run(config(home, f"tool{early}", rules=rules, **changes))
        assert ids(made) == ["q0", "q2"]
        gone = {line["id"]: line["rule"] for line in lines(made.path / "dropped.jsonl")}
        assert {name: gone[name] for name in ("q1", "q3", "q4", "q5")} == {
            "q1": "without_tools", "q3": "without_tools", "q4": "with_tools", "q5": "with_tools",
        }  # fmt: skip
        plain = {line["id"]: line["rate"] for line in lines(made.path / "facts" / "pass_rate_without_tools.jsonl")}
        assert plain == {f"q{n}": float(n in (1, 3)) for n in range(QUESTIONS)}
        # Without tools six questions, with tools the four that are left. Early: one right rollout decides.
        assert len(asked) == (2 * 6 + 2 * 4 if not early else (1 + 1 + 2 * 4) + (1 + 1 + 2 * 2))
        asked.clear()


def test_rules_of_turns_and_of_references_read_what_is_stored(home: Path) -> None:
    """Both demonstrations that are there once have no tool turn; of the questions, all are of the rule counts."""
    with pytest.raises(InputError, match="no row of demos:v1 stays"):
        stage.run(config(home, "turns", data="demos:v1", rules={"turns": turns.tool_turns}))
    made = stage.run(config(home, "turns", data="demos:v1", rules={"turns": turns.length, **ROWS}, model=None))
    assert ids(made, "train") == ["d0", "d1"]
    sure = stage.run(config(home, "sure", rules={"sure": verifiable.reference}, model=None))
    assert {line["id"]: line["why"] for line in lines(sure.path / "dropped.jsonl")} == {
        "mute": "its rule finds the reference '' wrong",
    }


def test_an_early_stop_keeps_the_same_rows_with_fewer_rollouts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"pass_rate": partial(pass_rate.band, max_rate=0.9)}
    asked = count_rollouts(monkeypatch)
    early = stage.run(
        config(home, "early", rules=ROWS | rules, rollouts=Rollouts(group_size=8, early_stop=True), seed=5)
    )
    saved = len(asked)
    whole = stage.run(config(home, "whole", rules=ROWS | rules, rollouts=Rollouts(group_size=8), seed=5))
    assert ids(early) == ids(whole)
    assert len(asked) == 8 * QUESTIONS > 2 * saved


async def by_seed_or_none(trajectory: Trajectory) -> Mapping[str, Any]:
    """Every other rollout without a verdict."""
    return {"answer_correct": None} if trajectory.seed % 2 else await by_seed(trajectory)


@pytest.mark.parametrize("early", [False, True])
def test_a_merge_takes_what_its_shards_left_unjudged(early: bool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = Rollouts(group_size=4, early_stop=early)
    changes: dict[str, Any] = {"signals": {"answer": by_seed_or_none}, "max_unjudged": 1.0, "rollouts": rollouts}
    changes |= {"seed": 30 + early, "memory": "off"}  # the rates are in the shard's artifact
    shard = stage.run(config(home, "parts", **changes, shard="1/1"))
    measured = {line["id"]: line["outcomes"] for line in lines(shard.path / "facts" / "pass_rate.jsonl")}
    assert "unjudged" in {outcome for outcomes in measured.values() for outcome in outcomes}
    asked = count_rollouts(monkeypatch)
    merged = stage.run(config(home, "parts", **changes, merge=1))
    taken = {line["id"]: line["outcomes"] for line in lines(merged.path / "facts" / "pass_rate.jsonl")}
    assert asked == [] and len(taken) == QUESTIONS and taken.items() <= measured.items()


def test_demonstrations_pass_through_the_cheap_rules(home: Path) -> None:
    made = stage.run(config(home, "shown", data="demos:v1", rules=ROWS))
    assert made.kind == "demos"
    assert ids(made, "train") == ["d0", "d1"]
    assert ids(made, "validation") == ["d0"]


def test_a_judge_without_verdicts_and_broken_rollouts_end_the_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def view(*_: object) -> None:
        raise OSError("no pixels today")

    monkeypatch.setattr(ImageStore, "view", view)
    with pytest.raises(EngineError, match=r"filter \(data:v1\): 100%.*no pixels today"):
        stage.run(config(home, "broken", seed=11))
    assert not (home / "broken").exists()


class SilentJudge:
    """A judge that answers nothing."""

    name, trouble = "silent", ""

    async def start(self, rubrics: Sequence[str], *, eager: bool = True) -> None: ...
    async def close(self) -> None: ...


async def few_are_asked(trajectory: Trajectory, *, judge: Any) -> Mapping[str, Any]:
    """Rules decide most answers. A judge is asked about the others, and says nothing."""
    asked = trajectory.sample.id == "q1" and trajectory.seed % 2
    return {"answer_correct": None, "judged": ["answer"], "unjudged": ["answer"]} if asked else {"answer_correct": 1}


def test_answers_that_rules_decide_do_not_hide_a_dead_judge(home: Path) -> None:
    told = (
        r"filter \(data:v1\): the judge silent gave no verdict on 100\.0% of the trajectories that it was asked about"
    )
    changes: dict[str, Any] = {"signals": {"answer": few_are_asked}, "judge": lambda **_: SilentJudge(), "seed": 40}
    with pytest.raises(EngineError, match=told):
        stage.run(config(home, "silent", **changes, max_unjudged=0.5, rollouts=Rollouts(group_size=8)))
    assert not (home / "silent").exists()


MEASURED: list[str] = []


async def by_rubric(trajectory: Trajectory, *, judge: Any, rubric: str = "deepeyes_answer") -> Mapping[str, Any]:
    MEASURED.append(trajectory.id)
    return await by_seed(trajectory)


def open_silent(**_: Any) -> SilentJudge:
    return SilentJudge()


def test_another_text_of_a_rubric_measures_the_same_rollouts_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_rollouts(monkeypatch)
    MEASURED.clear()
    changes: dict[str, Any] = {"signals": {"answer": by_rubric}, "judge": open_silent, "seed": 41}
    stage.run(config(home, "first", **changes))
    stage.run(config(home, "same", **changes))
    assert len(MEASURED) == len(asked) == 4 * QUESTIONS
    monkeypatch.setattr(memory, "load_rubric", lambda name: dataclasses.replace(rubrics.load(name), system="Be kind."))
    stage.run(config(home, "other", **changes))
    assert len(MEASURED) == 8 * QUESTIONS and len(asked) == 4 * QUESTIONS


def test_rows_that_are_skipped_are_in_the_manifest(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path).draft("data", "dataset", seed=0, stage="synth") as draft:
        rows = [(sample("whole"), [picture(1)]), (sample("cut"), [picture(2)])]
        records.write_samples(draft.path / "answer-train.parquet", rows)
        cut_image(draft.path / "answer-train.parquet", 1)
        draft.commit()
    with pytest.raises(InputError, match=r"(?s)1 of 2 .*filter\.bad_rows=skip"):
        stage.run(config(tmp_path, "rows", rules=ROWS, model=None))
    made = stage.run(config(tmp_path, "rows", rules=ROWS, model=None, bad_rows="skip"))
    assert ids(made) == ["whole"]
    assert made.manifest.summary["bad_rows"] == {"answer-train": {"cannot be read": 1}}


def test_prompts_without_room_are_no_wrong_answers(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"filter\.agent\.limits\.max_tokens: .*20"):
        stage.run(config(home, "roomless", limits=Limits(max_turns=1, max_tokens=20, max_turn_tokens=6)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "nothing:v1"}, "vtcli artifacts ls"),
        ({"data": "model:v1"}, "expected one of kind dataset"),
        ({"data": "demos:v1"}, "filter.rules.pass_rate rolls questions out, and demos:v1 holds demonstrations"),
        ({"model": "data:v1"}, "expected one of kind model"),
        ({"splits": ("validation",)}, "it has answer-test, answer-train"),
        ({"rules": {"question": partial(lengths.question, min_chars=99)}}, "no row of data:v1 stays"),
    ],
)
def test_wrong_inputs_say_what_to_do(home: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        stage.run(config(home, "wrong", **changes))


def test_settings_that_cannot_work_are_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match="needs rollouts of a policy: give model="):
        config(home, "wrong", model=None)
    with pytest.raises(ConfigError, match=r"filter\.rules "):
        config(home, "wrong", rules={})
    unseen = {"unseen": contamination.against}
    with pytest.raises(ConfigError, match=r"filter\.rules\.unseen .*benchmark="):
        config(home, "wrong", rules=unseen, model=None)
    with pytest.raises(ConfigError, match=r"filter\.benchmarks_in "):
        config(
            home, "wrong", rules=unseen, model=None, benchmark={"vstar": Benchmark("V", (Format("a"),), 1, ("exact",))}
        )
    with pytest.raises(ConfigError, match="image, answer, duplicates"):
        config(home, "wrong", rules=ROWS, model=None, against=("data:v1",))
    with pytest.raises(ConfigError, match="temperature 0"):
        Rollouts(group_size=8).require(Sampling(0.0))


def test_the_recipes_have_their_papers_rules() -> None:
    def rules(recipe: str) -> dict[str, Any]:
        argv = [f"+recipe={recipe}", "scale=paper", "data=d:v1", "model=m:v1"]
        return dict(compose.build(stage.Config, compose.load("filter", argv)).rules)

    codev, codevision = rules("codev"), rules("codevision")
    assert list(codev) == ["image", "question", "answer", "duplicates", "pass_rate"]
    assert codev["pass_rate"].func is pass_rate.band and codev["pass_rate"].keywords == {"max_rate": 0.9}
    assert codevision["pass_rate"].func is pass_rate.mixed
    assert "pass_rate" not in rules("toolsrl")
    argv = ["filter=contamination", "scale=tiny", "data=d:v1", "benchmark=[vstar]", "filter.benchmarks_in=copies"]
    composed = compose.build(stage.Config, compose.load("filter", argv))
    assert list(composed.rules)[-2:] == ["near", "contamination"] and list(composed.benchmark) == ["vstar"]
    with pytest.raises(ConfigError, match="max_rat"):
        compose.build(
            stage.Config,
            compose.load("filter", ["+recipe=codev", "scale=tiny", "data=d:v1", "+filter.rules.pass_rate.max_rat=1"]),
        )
