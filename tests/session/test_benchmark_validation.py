"""Figures of benchmarks in a validation: those of all ranks, by the benchmark's own scorers."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_copies import parquet, struct
from fakes import make_sample, make_scored, make_trajectory

from vtcli.benchmarks.benchmark import Benchmark, Format, Generation
from vtcli.protocols import ALONE, Ranks, Sampling
from vtcli.rollout.batch import StepBatch
from vtcli.rollout.stream import StreamResult
from vtcli.schema import Group, Sample, Stop
from vtcli.session.benchmark_questions import BenchmarkQuestions, Drawing
from vtcli.session.benchmark_validation import BenchmarkExam
from vtcli.store.images import ImageStore

ANSWERS = ("K", "N", "", None)  # right, wrong, without an answer, broken


def mini(**changes: object) -> Benchmark:
    form = Format("mini.parquet", id="key", question="ask", answer="gold")
    return Benchmark("Mini", (form,), 5, ("exact",), **changes)  # pyright: ignore[reportArgumentType]


def exam(folder: Path, *names: str, **changes: object) -> BenchmarkExam:
    asked = BenchmarkQuestions({name: mini(**changes) for name in names}, str(folder), seed=3)
    return BenchmarkExam(
        asked, Drawing(1, Sampling(0.0)), "oracle", ImageStore(folder / "store"), lambda sample: sample
    )


def batch(*answers: str | None) -> StepBatch:
    groups: dict[int, Group] = {}
    for place, answer in enumerate(answers):
        sample = make_sample(id=f"mini-{answer}", task="mini")
        stop = Stop.BROKEN if answer is None else Stop.ANSWERED
        trajectory = make_trajectory(sample, [f"<answer>{answer}</answer>" if answer else "Hm."], stop=stop)
        groups[place] = Group(sample, (make_scored(trajectory, {}),))
    return StepBatch(0, StreamResult(groups, 0, {}), {}, {}, 1, 0)


def test_the_figures_are_of_all_ranks_and_say_what_they_leave_out(tmp_path: Path) -> None:
    alone = exam(tmp_path, "mini").figures(batch(*ANSWERS), ALONE)
    assert alone["benchmark.mini.exact.all"] == pytest.approx(1 / 3)
    assert alone["benchmark.mini.exact.all_low"] < 1 / 3 < alone["benchmark.mini.exact.all_high"]
    counts = {name: alone[f"counts.mini.{name}"] for name in ("questions", "broken", "unanswered", "unread")}
    assert counts == {"questions": 4, "broken": 1, "unanswered": 1, "unread": 0}
    assert alone["broken"] == 0.25

    others: list[list[object]] = []
    exam(tmp_path, "mini").figures(batch(*ANSWERS[2:]), Ranks(1, 2, lambda value: others.append(value) or [value]))
    both = Ranks(0, 2, lambda value: [value, others[0]])
    assert exam(tmp_path, "mini").figures(batch(*ANSWERS[:2]), both) == alone
    assert len(str(others[0])) < 6000  # tokens and images stay with their rank


def test_ranks_share_the_rows_out_and_ask_the_same_as_one(tmp_path: Path) -> None:
    rows = [{"key": f"k{n}", "ask": f"Where is {n}?", "gold": "K", "image": struct(n)} for n in range(5)]
    for name in ("mini", "other"):
        parquet(tmp_path / name / "mini.parquet", rows)
    setting = Generation(temperature=1.0, group_size=2)
    one = exam(tmp_path, "mini", "other", generation=setting).round(ALONE)
    shares: list[list[Sample]] = []
    for rank in range(2):
        exam(tmp_path, "mini", "other").round(Ranks(rank, 2, lambda mine: shares.append(mine) or [mine]))
    assert [len(share) for share in shares] == [6, 4]
    both = Ranks(1, 2, lambda mine: [shares[0], mine])
    two = exam(tmp_path, "mini", "other", generation=setting).round(both)
    asked = [[request.group(place) for place in range(request.places)] for request in (one, two)]
    assert [group.sample.task for group in asked[1]] == ["mini"] * 5 + ["other"] * 5
    assert sorted(map(repr, asked[0])) == sorted(map(repr, asked[1]))
    assert (asked[0][0].size, asked[0][0].sampling.temperature) == (2, 1.0)
