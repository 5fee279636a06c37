"""Rows of which some values are something else: each is an item or a bad row that is named, and never a crash."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_values import odd_versions

from vtcli.data.generators import canvas
from vtcli.data.importers import rows
from vtcli.data.importers.rows import generate
from vtcli.errors import InputError

IMAGE: dict[str, Any] = {"bytes": canvas.png(np.full((20, 30, 3), 90, np.uint8)), "path": None}
URI = f"data:image/png;base64,{base64.b64encode(IMAGE['bytes']).decode()}"
CALL = {"function": {"name": "zoom", "arguments": {"bbox_2d": [1, 2, 9, 9]}}, "type": "function"}
TALK = [
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": URI}}, {"type": "text", "text": "What?"}],
        "tool_calls": None,
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": [{"type": "text", "text": "red"}], "tool_calls": None, "weight": 1},
]
KINDS: dict[str, tuple[str | None, str, dict[str, Any]]] = {
    "own": (
        None,
        "train",
        {"image": IMAGE, "question": "What?", "answer": "1", "numeric": True, "tolerance": 0.5, "rule": "mra"}
        | {"boxes": [{"label": "sign", "box": [2, 3, 9, 9]}], "required": ["crop"], "search": True},
    ),
    "options": (
        "problem_solution",
        "train",
        {"image": IMAGE, "problem": "Which?", "solution": "B", "options": ["a", "b"]},
    ),
    "verl": (
        "verl",
        "train",
        {"images": [IMAGE], "prompt": [{"role": "user", "content": "<image>What?"}], "data_source": "x"}
        | {"reward_model": {"ground_truth": "red", "style": "rule"}, "extra_info": {"answer": "red", "index": 1}},
    ),
    "messages": ("openai", "train", {"messages": TALK, "tools": "[]"}),
    "demonstrations": ("openai", "demo-train", {"messages": TALK, "tools": "[]"}),
}


class OneRow:
    """A source of one row, which no file could hold in every case."""

    rows, name = 1, "rows.parquet"

    def __init__(self, given: Any, row: dict[str, Any]) -> None:
        self.place, self.row = given.place, row

    def read(self, row: int) -> dict[str, Any]:
        assert row == 0
        return self.row


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_an_item_or_a_bad_row(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset, split, row = KINDS[kind]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [json.dumps(sorted(row))]}), path)
    opened = rows.open_rows(str(path), split, preset, None)
    how: dict[str, Any] = {"path": str(path), "name": "own", "preset": preset}
    bad = 0
    for nth, odd in enumerate(odd_versions(row, random.Random(kind), 400)):
        monkeypatch.setattr(rows, "open_rows", lambda *_, odd=odd: replace(opened, source=OneRow(opened.source, odd)))
        try:
            generate(0, 0, split, **how)
        except InputError:
            assert nth, "the row itself is bad"
            bad += 1
    assert 0 < bad < 400
