"""The environment that a model's manifest names survives the manifest, and is none where it would be a guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtcli.config import compose
from vtcli.errors import InputError
from vtcli.runs.environment import PARTS, recorded, require_environment
from vtcli.store.artifacts import Artifact, ArtifactStore


def made(home: Path, name: str, stage: str, env: str) -> Artifact:
    job = compose.load("synth", [f"env={env}", "scale=tiny"]).values
    config = {key: job[key] for key in ("env", "prompt")}
    with ArtifactStore(home).draft(name, "demos", stage=stage, config=config) as draft:
        (draft.path / "x").write_text("x")
        return draft.commit()


def test_tools_keep_the_order_of_the_prompt(tmp_path: Path) -> None:
    job = compose.load("rl", ["+recipe=toolsrl", "scale=tiny"]).values
    with ArtifactStore(tmp_path).draft("m", "model") as draft:
        (draft.path / "x").write_text("x")
        draft.commit(recorded(job))
    read = require_environment(ArtifactStore(tmp_path).resolve("m@latest"), "m@latest", PARTS)
    assert list(read["env"]["tools"]) == list(job["env"]["tools"]) and read["env"] == job["env"]
    assert (read["prompt"], read["images"], read["limits"]) == (
        job["prompt"],
        job["images"],
        job["rl"]["agent"]["limits"],
    )


def test_sft_records_the_environment_of_its_demonstrations_or_none(tmp_path: Path) -> None:
    job = compose.load("sft", ["sft.data=demos:v1", "scale=tiny"]).values
    assert "environment" in recorded(job, made(tmp_path, "same", "synth", "native"))
    assert "environment" in recorded(job, made(tmp_path, "imported", "", "codev"))
    assert recorded(job, made(tmp_path, "other", "synth", "codev")) == {}


def test_a_folder_that_is_no_artifact_names_none() -> None:
    with pytest.raises(InputError, match=r"Qwen/X: it is not an artifact.*\+recipe=NAME"):
        require_environment(None, "Qwen/X", PARTS)
    assert require_environment(None, "Qwen/X", ("prompt", "images", "limits")) == {}  # env=… was given
