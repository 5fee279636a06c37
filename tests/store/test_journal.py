"""A journal stores each row at once, and waits for the disk once in a while only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes import make_sample

from vtcli.errors import InputError
from vtcli.schema import Sample
from vtcli.store import journal, records
from vtcli.store.journal import Journal


def test_rows_are_in_the_file_at_once_and_waits_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [100.0], list[float]()
    monkeypatch.setattr(journal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "fsync", lambda number: waits.append(now[0]))
    kept = Journal(tmp_path / "rows.jsonl")
    for count in range(1, 11):
        kept.add(make_sample(id=f"s{count}"))
        assert [sample.id for sample in records.read(kept.path, Sample)][-1] == f"s{count}"  # by another handle
        now[0] += 0.3
    assert len(list(records.read(kept.path, Sample))) == 10
    assert waits == pytest.approx([100.0, 101.2, 102.4])


def test_a_torn_line_of_an_earlier_run_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Journal(path).add(make_sample(id="a"))
    with path.open("a") as file:
        file.write('{"schema_version": 1, "ty')
    Journal(path).add(make_sample(id="b"))
    assert [sample.id for sample in records.read(path, Sample)] == ["a", "b"]


def test_disk_trouble_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(InputError, match=r"rows\.jsonl"):
        Journal(tmp_path / "rows.jsonl").add(make_sample())
