"""Folders that are given as a model and hold none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vtcli.errors import InputError
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.models import source_model


def test_an_adapter_alone_is_refused_with_its_base_and_the_merged_model(tmp_path: Path) -> None:
    folder = tmp_path / "policy" / "adapter"
    folder.mkdir(parents=True)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct"}))
    store = ArtifactStore(tmp_path)
    with pytest.raises(InputError, match=r"an adapter of Qwen/Qwen2\.5-VL-3B-Instruct, .*merge_and_unload"):
        source_model(store, str(folder))
    (folder.parent / "config.json").write_text("{}")
    with pytest.raises(InputError, match=f"Give {folder.parent}, which holds the merged model"):
        source_model(store, str(folder))
    config.write_text("{")
    with pytest.raises(InputError, match="a model that it does not name"):
        source_model(store, str(folder))
