"""OCRBench in six orientations, one column each, with the mean of six; all by hand."""

from __future__ import annotations

import pytest
from benchmark_copies import shipped
from fakes import make_sample, make_trajectory

from vtcli.benchmarks import results
from vtcli.report import evaluated
from vtcli.report.printing import Table
from vtcli.report.side_by_side import BenchmarkRun
from vtcli.schema import Scored, Signals

NAMES = ("ocrbench", *(f"ocrbench_{turn}" for turn in ("rot90", "rot180", "rot270", "hflip", "vflip")))


def scored(name: str, key: int, said: str) -> Scored:
    sample = make_sample(
        None, id=f"{name}-{key}", task=name, answer="shop", truth={"category": "Regular Text Recognition"}
    )
    return Scored(make_trajectory(sample, [f"<answer>{said}</answer>"]), Signals({}), None)


def made(rights: dict[str, str]) -> Table | None:
    """``rights``: by benchmark one letter a row, r for a right answer and w for a wrong one."""
    found = [
        scored(name, key, "shop" if letter == "r" else "ship")
        for name, letters in rights.items()
        for key, letter in enumerate(letters)
    ]
    benchmarks = {name: shipped()[name] for name in rights}
    setting = results.RunSetting("m", "oracle", "T 0")
    measured = {name: one for name, b in benchmarks.items() if (one := results.result(name, b, found, setting, seed=0))}
    return evaluated.table(BenchmarkRun("m", "oracle", found), benchmarks, measured, 0)


def test_six_orientations_and_their_mean_beside_the_printed_rows() -> None:
    table = made(dict(zip(NAMES, ("rrrr", "rrrw", "rrww", "rwww", "wwww", "rrrr"), strict=True)))
    assert table is not None
    ours, base, trained, *larger = table.lines
    assert [cell.text for cell in larger[0][1:3]] == ["CodeVision: Qwen3-VL-8B-Thinking", "82.4"] and len(larger) == 4
    assert [cell.text for cell in ours[:2]] == ["OCRBench", "m"]
    assert [cell.text for cell in ours[2:]] == ["100.0", "75.0", "50.0", "25.0", "0.0", "100.0", "58.3", "6"]
    assert ours[3].detail == "[30.1, 95.4]" and "Wilson" in ours[3].hint  # 3 of 4, as in the benchmark's own line
    assert ours[8].detail and "bootstrap of questions" in ours[8].hint and "n = 24 answers in 4" in ours[8].hint
    assert base[1].text == "CodeVision: Qwen2.5-VL-7B"
    assert [float(cell.text) for cell in base[2:7]] == [86.4, 70.2, 58.0, 71.7, 32.4]
    assert trained[1].text == "CodeVision: CodeVision-7B"
    printed = [float(cell.text) for cell in trained[2:8]]
    assert float(trained[8].text) == pytest.approx(sum(printed) / 6, abs=0.051) and trained[9].text == "6"


def test_the_mean_weighs_orientations_alike_and_rows_of_one_question_stay_together() -> None:
    """1 of 1 upright and 1 of 4 turned: (1 + 1/4) / 2. Rows that agree in both have a wider interval than others."""
    table = made({"ocrbench": "r", "ocrbench_rot90": "rwww"})
    assert table is not None and table.lines[0][8].text == "62.5"
    same = made({"ocrbench": "rrrrwwww", "ocrbench_rot90": "rrrrwwww"})
    other = made({"ocrbench": "rrrrwwww", "ocrbench_rot90": "wwwwrrrr"})
    assert same is not None and other is not None
    assert same.lines[0][8].detail != "" and other.lines[0][8].detail == ""  # each question is half right: no spread


def test_one_orientation_or_another_benchmark_has_no_such_table() -> None:
    assert made({"ocrbench": "rrrr"}) is None
    assert made({"ocrbench_rot90": "rrrr", "docvqa": "rr"}) is None
