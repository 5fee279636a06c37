"""The judge of answers and the judge of evidence: which question goes where, and at which temperature."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from fakes import make_sample, make_trajectory
from judge_server import JudgeServer, honest, pictures, text_of

from stages import filter as filter_stage
from stages import judge as stage
from stages import rl
from vtcli.config import compose
from vtcli.errors import ConfigError
from vtcli.judging import oracle, separate
from vtcli.runs.run import RunSettings, fingerprint
from vtcli.scoring.stored import Score
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore

CALL = ("image_zoom_in_tool", {"image_idx": 0, "bbox_2d": [20, 30, 60, 70]})
WARM = ("judging.temperature=0.7", "judging.answer_temperature=1.0")
QUESTION = "Which fruit lies at number 7?"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One trajectory: a crop, and an answer in other words than the truth."""
    home = tmp_path / "artifacts"
    with ArtifactStore(home).draft("policy", "model", stage="rl", seed=0) as draft:
        store = ImageStore(draft.path / "images")
        sample = make_sample(
            store,
            question=QUESTION,
            answer="a red apple",
            truth={"boxes": [{"label": "apple", "box": [20, 30, 60, 70]}]},
            task="visual_search",
        )
        records.append(
            draft.path / "trajectories.jsonl",
            [make_trajectory(sample, [CALL, "<answer>It is an apple</answer>"], store)],
        )
        draft.commit()
    return home


def two(answer: JudgeServer, evidence: JudgeServer) -> list[str]:
    return [
        *("judge=separate", f"judge.answer.url={answer.url}", "judge.answer.model=reader"),
        *(f"judge.evidence.url={evidence.url}", "judge.evidence.model=looker"),
    ]


def scored(home: Path, *argv: str) -> Score:
    job = compose.load("judge", ["policy:v1", "+recipe=codev", *argv, "scale=tiny", "tracker=none", f"home={home}"])
    (found,) = records.read(stage.run(compose.build(stage.Config, job)).path / "scores.jsonl", Score)
    return found


def temperatures(bodies: Sequence[dict[str, Any]]) -> set[float]:
    return {body["temperature"] for body in bodies}


def test_each_judge_is_asked_its_own_questions_and_passes_its_own_trial_at_the_papers_temperature(home: Path) -> None:
    with JudgeServer(honest) as reader, JudgeServer(honest) as looker:
        found = scored(home, *WARM, *two(reader, looker))
    assert {body["model"] for body in reader.requests} == {"reader"} and temperatures(reader.requests) == {1.0}
    assert {body["model"] for body in looker.requests} == {"looker"} and temperatures(looker.requests) == {0.7}
    assert not any(pictures(body) for body in reader.requests) and all(map(pictures, looker.requests))
    assert [QUESTION in text_of(body) for body in reader.requests].count(True) == 1  # the others are the trial
    assert [QUESTION in text_of(body) for body in looker.requests].count(True) == 1
    assert found.signals.values["answer_correct"] == 1 and found.signals.values["evidence_by"] == "looker"


def test_one_judge_keeps_both_temperatures(home: Path) -> None:
    with JudgeServer(honest) as server:
        scored(home, *WARM, "judge=openai", f"judge.url={server.url}", "judge.model=m")
    shown = [body for body in server.requests if pictures(body)]
    assert temperatures(shown) == {0.7}
    assert temperatures([body for body in server.requests if not pictures(body)]) == {1.0}


def test_answers_may_have_a_model_while_the_oracle_looks_at_crops(home: Path) -> None:
    with JudgeServer(honest) as server:
        one = f"judge.answer.url={server.url}", "judge.answer.model=reader"
        found = scored(home, "judge=separate", "judge@judge.evidence=oracle", *one)
    assert not any(map(pictures, server.requests)) and found.signals.values["answer_correct"] == 1
    assert found.signals.values["evidence_by"] == "oracle"


TOOLSRL = ("+recipe=toolsrl", "scale=tiny", "rl.data=d:v1")


def test_identity_counts_both_models_and_no_address() -> None:
    def key(*changes: str) -> str:
        words = [
            "judge=separate",
            *("judge.answer.url=http://a/v1", "judge.answer.model=a"),
            "judge.evidence.url=http://b/v1",
        ]
        values = compose.load("rl", [*TOOLSRL, *words, "judge.evidence.model=b", *changes]).values
        settings = RunSettings(name="policy", home=Path("h"), seed=0)
        return fingerprint("rl", "model", settings, values, [], runtime_keys=rl.RUNTIME_KEYS)

    moved = "judge.answer.url=http://c/v1", "judge.evidence.url=http://d/v1", "judge.answer.patience.timeout_s=9"
    assert key() == key(*moved, "judge.evidence.key_env=OTHER", "judge.answer.cache=/tmp/x")
    changed = (
        "judge.answer.model=c",
        "judge.evidence.model=c",
        "judging.answer_temperature=0.9",
        "judging.temperature=0.9",
    )
    assert len({key(), *map(key, changed)}) == 5


def test_the_papers_temperatures_are_those_of_their_own_judges() -> None:
    def sent(*argv: str) -> tuple[float, float]:
        judge = compose.load("rl", ["scale=tiny", "rl.data=d:v1", *argv, "judge=openai"]).values["judge"]
        return judge["answer_parameters"]["temperature"], judge["parameters"]["temperature"]

    assert sent("+recipe=toolsrl") == sent("+recipe=pyvision_video") == (0.3, 0.0)
    assert sent("+recipe=codev", "variant=code") == (1.0, 0.7)
    assert sent("+recipe=codev", "judging.temperature=0.5") == (0.5, 0.5)


def test_who_judges_answers_and_who_looks_is_read_from_the_configuration() -> None:
    words = ["judge=separate", "judge.answer.url=http://a/v1", "judge.answer.model=a", "judge@judge.evidence=oracle"]
    composed = compose.load("rl", [*TOOLSRL, *words])
    assert separate.answers_by(composed.values) == "a" and separate.answers_by({"judge": {"model": "m"}}) == "m"
    assert separate.answers_by({}) is None and separate.answers_by({"judge": {"covers": 0.9}}) is None
    assert oracle.judges(compose.build(rl.Config, composed).agent.judge)


@each_case(
    ("override", "words"),
    [
        ("judge.evidence.model=b", r"judge\.evidence\.url: needs a value: give judge\.evidence\.url=…"),
        ("judge.evidnce.model=b", "there is no key 'judge.evidnce.model'"),
    ],
)
def test_a_slip_names_the_judges_own_key(override: str, words: str) -> None:
    one = "judge.answer.url=http://a/v1", "judge.answer.model=a"
    with pytest.raises(ConfigError, match=words):
        compose.build(rl.Config, compose.load("rl", [*TOOLSRL, "judge=separate", *one, override]))


def test_a_rubric_of_another_subject_is_refused_by_its_name(home: Path) -> None:
    with (
        JudgeServer(honest) as server,
        pytest.raises(ConfigError, match=r"codev_evidence is about evidence.*about: answer"),
    ):
        scored(home, "judge=openai", f"judge.url={server.url}", "judge.model=m", "signals.answer.rubric=codev_evidence")


def test_filters_rates_do_not_depend_on_an_address() -> None:
    assert {"judge.answer.url", "judge.evidence.url"} <= set(filter_stage.RUNTIME_KEYS)
