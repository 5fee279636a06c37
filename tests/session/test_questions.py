"""Which questions a run is trained on, and what a user is told where there are none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vtcli.errors import InputError
from vtcli.session.questions import require_forms
from vtcli.store.artifacts import Artifact, ArtifactStore


def dataset(home: Path, *forms: str, empty: str = "") -> Artifact:
    with ArtifactStore(home).draft("photos", "dataset", seed=0, stage="synth") as draft:
        for form in forms:
            pq.write_table(pa.table({"id": ["0"]}), draft.path / f"{form}-train.parquet")
            pq.write_table(pa.table({"id": ["0"]}), draft.path / f"{form}-test.parquet")
        if empty:  # as synth leaves a form without rows
            pq.write_table(pa.table({"id": pa.array([], pa.string())}), draft.path / f"{empty}-train.parquet")
        return draft.commit()


def test_a_form_that_a_dataset_lacks_is_named_with_what_to_do(tmp_path: Path) -> None:
    made = dataset(tmp_path, "answer")
    require_forms(made, ["answer", "answer"])
    with pytest.raises(InputError, match=r"photos:v1 has no tool-supervised questions .* it has the form answer"):
        require_forms(made, ["tool", "answer"])
    require_forms(dataset(tmp_path, "answer", "tool"), ["tool", "answer"])
    with pytest.raises(InputError, match=r"has no tool-supervised questions .* it has the form answer"):
        require_forms(dataset(tmp_path, "answer", empty="tool"), ["tool", "answer"])


def test_a_name_without_its_version_is_recognised(tmp_path: Path) -> None:
    dataset(tmp_path, "answer")
    with pytest.raises(InputError, match="Did you mean photos@latest"):
        ArtifactStore(tmp_path).resolve("photos", "dataset")
    with pytest.raises(InputError, match="'fotos' is not an artifact") as caught:
        ArtifactStore(tmp_path).resolve("fotos", "dataset")
    assert "Did you mean" not in str(caught.value)
