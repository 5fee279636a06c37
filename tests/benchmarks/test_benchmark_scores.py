"""Stored answers scored again by a benchmark's rule: no model, no judge, no artifact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import make_sample, make_trajectory

from vtcli.cli.benchmarks import score
from vtcli.errors import InputError
from vtcli.schema import Scored, Signals
from vtcli.store import records


def answer(number: int, reply: str) -> Scored:
    sample = make_sample(
        id=f"mathvision-{number}", task="mathvision", question="How long?", answer="3", truth={"rule": "formula"}
    )  # fmt: skip
    signals = Signals({"answer_correct": 0})  # as an older rule had it
    return Scored(make_trajectory(sample, [f"<answer>{reply}</answer>"]), signals, None)


def test_a_file_of_answers_is_scored_by_the_rule_of_today(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "answers.jsonl", tmp_path / "figures.json"
    replies = ("The answer is 3", "x = 3", "4", "I see nothing in this picture")
    records.append(path, [answer(n, reply) for n, reply in enumerate(replies)])
    before = path.read_bytes()
    score(str(path), ["mathvision"], out=out, home=tmp_path)
    found = json.loads(out.read_text())["mathvision"]
    assert (found["figures"][0]["value"], found["unread"], found["questions"]) == (0.5, 1, 4)
    assert "MathVision (test)" in capsys.readouterr().err and path.read_bytes() == before
    score(str(path), None, home=tmp_path)  # every benchmark that was asked
    assert "MathVision (test)" in capsys.readouterr().err


def test_a_benchmark_that_was_not_asked_is_one_error(tmp_path: Path) -> None:
    records.append(tmp_path / "answers.jsonl", [answer(0, "3")])
    with pytest.raises(InputError, match=r"has no answers to vstar; its tasks are mathvision"):
        score(str(tmp_path / "answers.jsonl"), ["vstar"], home=tmp_path)
