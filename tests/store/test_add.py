"""`vtcli artifacts add`: an artifact of another home comes with its origin, once, and whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtcli.cli.artifacts import app
from vtcli.errors import InputError
from vtcli.store.artifacts import Artifact, ArtifactStore


@pytest.fixture
def base(tmp_path: Path) -> Artifact:
    """A model with one parent, in a home of its own."""
    store = ArtifactStore(tmp_path / "theirs")
    with store.draft("demos", "demos", seed=3) as draft:
        (draft.path / "rows").write_text("r")
        demos = draft.commit()
    details = {"seed": 3, "stage": "sft", "config": {"scale": "tiny"}, "overrides": ("+recipe=tiny_base",)}
    with store.draft("base", "model", parents=(demos,), summary={"loss": 1.5}, **details) as draft:
        (draft.path / "deep").mkdir()
        (draft.path / "deep" / "weights").write_text("w")
        return draft.commit()


def test_an_artifact_of_another_home_keeps_its_content_and_its_origin(tmp_path: Path, base: Artifact) -> None:
    store = ArtifactStore(tmp_path / "ours")
    with store.draft("demos", "demos") as draft:  # another one, of the parent's name
        (draft.path / "rows").write_text("other")
        draft.commit()
    added = store.add(base.path)
    assert added.ref == "base:v1" and added.digest == base.digest
    ours, theirs = added.manifest, base.manifest
    for name in ("seed", "stage", "config", "overrides", "git_commit", "created", "fingerprint"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.summary["loss"] == 1.5
    assert ours.summary["added"]["parents"][0]["digest"] == theirs.parents[0].digest
    assert store.verify("base:v1") == []  # the demos of this home are not taken for its parent
    assert store.add(base.path).ref == "base:v1"  # once


def test_a_damaged_artifact_is_not_added(tmp_path: Path, base: Artifact) -> None:
    weights = base.path / "deep" / "weights"
    weights.chmod(0o644)
    weights.write_text("x")
    store = ArtifactStore(tmp_path / "ours")
    with pytest.raises(InputError, match=r"is damaged: deep/weights has another content"):
        store.add(base.path)
    with pytest.raises(InputError, match="is no artifact"):
        store.add(tmp_path)
    assert store.ls() == []


def test_the_command_prints_what_a_stage_prints(tmp_path: Path, base: Artifact) -> None:
    result = CliRunner().invoke(app, ["add", str(base.path), "--home", str(tmp_path / "ours")])
    assert result.output == f"base:v1\t{tmp_path / 'ours' / 'base' / 'v1'}\n"
