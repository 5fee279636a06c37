"""The data card of an export counts what every ancestor left out, once, and names its filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vtcli.data.exporters.data_card import Loss, losses
from vtcli.data.exporters.writing import export
from vtcli.data.generators import canvas
from vtcli.schema import Sample
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore

PNG = canvas.png(np.zeros((40, 60, 3), np.uint8))


def commit(
    store: ArtifactStore, name: str, stage: str, summary: dict[str, Any], parents: tuple[Artifact, ...] = (), **how: Any
) -> Artifact:
    with store.draft(name, how.get("kind", "dataset"), stage=stage, parents=parents) as draft:
        rows = [(Sample("a-train-000000", "a", "answer", "train", "q?", "x", (), (), {"rule": "exact"}), [PNG])]
        records.write_samples(draft.path / "answer-train.parquet", rows)
        return draft.commit(summary)


def test_every_ancestor_counts_once_and_filters_are_named(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "home")
    seen = {"dropped_as_seen_in_a_held_out_split": {"answer-train": 3}}
    bad = {"bad_rows": {"answer-train": {"no image": 2}, "answer-test": {"no image": 1, "not JSON": 4}}}
    shards = [
        commit(store, f"d-shard-{n}-of-2", "synth", seen | {"bad_rows": {"answer-train": {"no image": 1}}})
        for n in (1, 2)
    ]
    merged = commit(store, "d", "synth", seen | bad, tuple(shards))
    other = commit(store, "held-out", "synth", {"bad_rows": {"answer-test": {"no image": 99}}})
    model = commit(store, "m", "sft", {"dropped": {"x": 50}}, (other,), kind="model")
    first = commit(store, "once", "filter", {"dropped": {"rows": 5, "near": 0}}, (merged, model, other))
    last = commit(store, "twice", "filter", {"dropped": {"pass_rate": 7}}, (first,))
    assert losses(store.lineage(last.ref)) == [
        Loss("d-shard-1-of-2:v1", "synth", "its image is in a held-out split", 3),
        Loss("d-shard-2-of-2:v1", "synth", "its image is in a held-out split", 3),
        Loss("d:v1", "synth", "bad row: no image", 3),
        Loss("d:v1", "synth", "bad row: not JSON", 4),
        Loss("d:v1", "synth", "its image is in a held-out split", 3),
        Loss("once:v1", "filter", "filter rule near", 0),
        Loss("once:v1", "filter", "filter rule rows", 5),
        Loss("twice:v1", "filter", "filter rule pass_rate", 7),
    ]
    export(store, last.ref, "hf", tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "1 rows. Left out on the way: 28.\n" in text
    assert "| twice:v1 | filter | filter rule pass_rate | 7 |" in text and "99" not in text.split("## Lineage")[0]


def test_demonstrations_count_what_a_teacher_did_not_solve(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "home")
    data = commit(store, "d", "synth", {"bad_rows": {"answer-train": {"no image": 2}}})
    demos = commit(store, "t", "synth", {"dropped_rows": {"wrong answer": 6}}, (data,), kind="demos")
    assert [(loss.ref, loss.why, loss.rows) for loss in losses(store.lineage(demos.ref))] == [
        ("d:v1", "bad row: no image", 2),
        ("t:v1", "no demonstration: wrong answer", 6),
    ]
