"""A run that learns nothing says so while it goes on, and its end is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vtcli.errors import InputError
from vtcli.runs.training_logs import UpdateCount


def why() -> str:
    return "8 rollouts: 8 in groups whose rewards are all equal."


def test_steps_without_an_update_are_told_after_the_third_and_whenever_they_have_doubled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = UpdateCount(tmp_path / "metrics.jsonl")
    for updated in [0, 0, 1, *[0] * 13]:
        count.count(updated, why)
    told = [record.getMessage() for record in caplog.records]
    assert [text.split()[0] for text in told] == ["3", "6", "12"]
    assert told[0] == f"3 steps in a row updated nothing. Of the last one's {why()}"
    count.require(False)  # one did
    quiet = UpdateCount(tmp_path / "metrics.jsonl", quiet=True)
    for _ in range(3):
        quiet.count(0, why)
    assert len(caplog.records) == 3


def test_a_run_without_any_update_is_an_error_unless_allowed(tmp_path: Path) -> None:
    count = UpdateCount(tmp_path / "metrics.jsonl")
    count.require(False)  # nothing was to be done
    count.count(0, why)
    with pytest.raises(InputError, match=r"none of 1 steps updated.*all equal.*rl.allow_no_update=true"):
        count.require(False)
    count.require(True)


def test_what_an_earlier_attempt_updated_counts(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": n, "updated": u}) + "\n" for n, u in enumerate((0, 0.5))))
    count = UpdateCount(log)
    count.count(0, why)
    assert (count.steps, count.updated) == (3, 1)
    count.require(False)
    log.write_text(json.dumps({"step": 0, "updated": 0}) + "\n")
    with pytest.raises(InputError, match="none of 1 steps"):
        UpdateCount(log).require(False)  # all steps were done before
