"""An input that is not named: which artifact is taken, and why others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vtcli.runbook.newest import Criteria, newest
from vtcli.store.artifacts import Artifact, ArtifactStore

DATASET = Criteria("dataset", "synth", ["toolsrl"], "tiny")


def made(store: ArtifactStore, recipe: str, scale: str = "tiny", **more: Any) -> Artifact:
    config = {"scale": scale, "data": {"tasks": {"zoom": {"train": 700}}}, **more.pop("config", {})}
    overrides = tuple([f"+recipe={recipe}"] if recipe else []) + tuple(more.pop("overrides", ()))
    details = {"kind": "dataset", "stage": "synth", "seed": 0, **more}
    with store.draft("data", config=config, overrides=overrides, **details) as draft:
        (draft.path / "rows").write_text(f"{recipe} {scale} {more}")
        return draft.commit()


def test_the_newest_of_the_recipe_and_scale_is_taken(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    assert newest(store, DATASET) == (None, [])
    made(store, "toolsrl")
    mine = made(store, "toolsrl")
    made(store, "codev")  # newer ones of other recipes, stages and kinds
    made(store, "")
    made(store, "toolsrl", overrides=["+variant=toolsrl_mixed"])
    made(store, "toolsrl", kind="demos")
    made(store, "toolsrl", stage="rl", kind="model")
    made(store, "toolsrl", config={"synth": {"shard": "1/4"}})
    found, passed_over = newest(store, DATASET)
    assert found is not None and found.ref == mine.ref == "data:v2"
    assert passed_over == []


def test_another_scale_or_seed_or_value_is_not_taken_and_said(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    made(store, "toolsrl", seed=1)
    made(store, "toolsrl", scale="node")
    found, passed_over = newest(store, DATASET)
    assert found is not None and found.ref == "data:v1"  # any seed, where none is named
    assert passed_over == ["data:v2 is not taken: it was made at scale=node"]
    assert newest(store, Criteria("dataset", "synth", ["toolsrl"], "tiny", seed=0)) == (
        None,
        [*passed_over, "data:v1 is not taken: it was made with seed=1"],
    )
    few = Criteria("dataset", "synth", ["toolsrl"], "tiny", values={"data.tasks.zoom.train": 5, "unread.key": 1})
    assert newest(store, few)[1][1] == "data:v1 is not taken: data.tasks.zoom.train is 700 there"
    assert newest(store, Criteria("dataset", "synth", ["toolsrl"], "tiny", values={"data.tasks.zoom.train": 700}))[0]


def test_filtered_rows_count_as_those_they_were_chosen_from(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    data, other = made(store, "toolsrl"), made(store, "codev")
    made(store, "", stage="filter", parents=(data,))
    made(store, "toolsrl", stage="filter", parents=(other,))
    found = newest(store, DATASET)[0]
    assert found is not None and found.ref == "data:v3"


def test_a_model_of_another_family_or_environment_is_not_taken(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    as_model = {"kind": "model", "stage": "sft"}
    summary = {"environment": '{"env": {"name": "codev"}}'}
    made(store, "tiny_base", **as_model, config={"model": {"family": "qwen2_5_vl"}}, summary=summary)
    assert newest(store, Criteria("model", "sft", ["tiny_base"], "tiny", "qwen2_5_vl"))[0] is not None
    assert "family qwen2_5_vl" in newest(store, Criteria("model", "sft", ["tiny_base"], "tiny", "qwen3_vl"))[1][0]
    values = {"env": {"name": "native"}}
    assert "env is another" in newest(store, Criteria("model", "sft", ["tiny_base"], "tiny", values=values))[1][0]
