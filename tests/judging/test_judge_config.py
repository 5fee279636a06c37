"""conf/judge: both judges compose, bind, and say what they lack; how a judge is asked makes no new run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import each_case

from stages import eval as eval_stage
from stages import rl
from vtcli import judging
from vtcli.config import compose
from vtcli.errors import ConfigError
from vtcli.judging import rubrics
from vtcli.judging.model import ModelJudge
from vtcli.judging.oracle import Oracle
from vtcli.runs.run import RunSettings, fingerprint
from vtcli.store.images import ImageStore

MODEL = ("judge=openai", "judge.url=http://localhost:8000/v1", "judge.model=qwen")
TOOLSRL = ("+recipe=toolsrl", "scale=tiny", "rl.data=d:v1", "eval.data=d:v1", "eval.model=m:v1")


def opened(tmp_path: Path, stage: str, *argv: str) -> Any:
    cls = {"rl": rl.Config, "eval": eval_stage.Config}[stage]
    built = compose.build(cls, compose.load(stage, [*TOOLSRL, *argv]))
    assert built.agent.judge is not None and built.agent.max_unjudged == 0.05
    return built.agent.judge(images=ImageStore(tmp_path), home=tmp_path)


@each_case("stage", ["rl", "eval"])
def test_the_oracle_judges_unless_a_model_is_named(tmp_path: Path, stage: str) -> None:
    assert isinstance(opened(tmp_path, stage), Oracle)
    assert opened(tmp_path, stage, "judge.min_scale=0.7").sight.min_scale == 0.7
    judge = opened(tmp_path, stage, *MODEL, "judge.patience.concurrency=4")
    assert isinstance(judge, ModelJudge) and judge.name == "qwen"


def test_both_judges_have_plug_points_that_bind() -> None:
    for argv in ((), MODEL):
        assert compose.check_plug_points(compose.load("rl", [*TOOLSRL, *argv])) >= 8


def test_a_model_without_an_address_says_which_key_to_give() -> None:
    with pytest.raises(ConfigError, match=r"judge\.url: needs a value: give judge\.url=…"):
        compose.build(rl.Config, compose.load("rl", [*TOOLSRL, "judge=openai", "judge.model=m"]))


@each_case(
    ("override", "words"),
    [
        ("judge=openia", "there is no judge 'openia'. Did you mean 'openai'?"),
        ("judge.api_key=sk-1", "there is no key 'judge.api_key'"),
        ("judge.patience.concurency=3", "Did you mean 'judge.patience.concurrency'?"),
        ("judge.patience.attempts=0", "attempts and give_up must be at least 1"),
    ],
)
def test_a_slip_is_one_clear_error(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose.build(rl.Config, compose.load("rl", [*TOOLSRL, *MODEL, override]))
    assert words in str(caught.value)


def test_only_what_a_judge_says_makes_another_run() -> None:
    def key(*argv: str) -> str:
        values = compose.load("rl", [*TOOLSRL, *argv]).values
        settings = RunSettings(name="policy", home=Path("h"), seed=0)
        return fingerprint("rl", "model", settings, values, [], runtime_keys=rl.RUNTIME_KEYS)

    assert key(*MODEL) == key(*MODEL[:1], "judge.url=http://elsewhere/v1", *MODEL[2:], "judge.patience.timeout_s=9")
    assert len({key(), key(*MODEL), key(*MODEL, "judge.model=other"), key("judge.min_scale=0.7")}) == 4
    assert set(judging.RUNTIME_KEYS) <= set(rl.RUNTIME_KEYS) & set(eval_stage.RUNTIME_KEYS)


def test_a_text_of_a_rubric_that_yaml_reads_as_a_number_is_one_clear_error(tmp_path: Path) -> None:
    whole = (Path(__file__).parents[2] / "conf" / "judge" / "prompts" / "codevision_answer.yaml").read_text()
    own = tmp_path / "own.yaml"
    own.write_text(whole.replace("truth: a red apple", "truth: 4"))
    with pytest.raises(ConfigError, match=r"check\.texts\.truth=4 is not text; put it between quotes"):
        rubrics.load(str(own))
