"""The dry run of a reproduction reads a user's own rows and demonstrations, and says what rl will miss in them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from PIL import Image

from vtcli.config import compose
from vtcli.envs.parts import Data
from vtcli.errors import ConfigError
from vtcli.runbook import checking, dryrun
from vtcli.runbook.dryrun import DryRun
from vtcli.runbook.papers import Reproduction, steps
from vtcli.runbook.step import stage_parts
from vtcli.store.artifacts import ArtifactStore


def own_rows(folder: Path, *images: str, **more: Any) -> Path:
    """A data configuration ``photos`` with a row for each image; returns its folder."""
    Image.new("RGB", (64, 64)).save(folder / "there.png")
    rows = [
        {"question": "Which?", "answer": str(number), "image": image, **more} for number, image in enumerate(images)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    generate = {"_target_": "vtcli.data.importers.rows.generate", "path": str(folder / "rows.jsonl"), "name": "photos"}
    data = {"tasks": {"photos": {"train": None, "test": 1, "forms": ["answer"], "generate": generate}}}
    (folder / "my" / "data").mkdir(parents=True)
    (folder / "my" / "data" / "photos.yaml").write_text(json.dumps(data))
    return folder / "my"


def test_data_that_take_too_long_stop_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dryrun, "DATA_TIMEOUT_S", 0.01)
    asked = Reproduction("deepeyes", "tiny", data="photos", config_dir=own_rows(tmp_path, "there.png"))
    (result,) = DryRun(asked, steps(asked), None, True)._data()
    assert result.ok is False and "photos: its first rows are not there after 0 s; `vtcli synth" in result.said


@pytest.mark.slow
@pytest.mark.parametrize(("image", "ok"), [("there.png", True), ("gone.png", False)])
def test_a_dry_run_reads_the_first_rows_of_a_data_configuration(tmp_path: Path, image: str, ok: bool) -> None:
    asked = Reproduction("deepeyes", "tiny", data="photos", config_dir=own_rows(tmp_path, "there.png", image))
    (result,) = DryRun(asked, steps(asked), None, True)._data()
    assert result.ok is ok
    assert f"of the first 3 rows {int(not ok)} are bad" in result.said  # two to train on, one to test


def test_a_dry_run_refuses_data_without_the_form_that_is_trained_on(tmp_path: Path) -> None:
    asked = Reproduction("toolsrl", "tiny", data="photos", config_dir=own_rows(tmp_path, "there.png"))
    with pytest.raises(ConfigError, match=r"photos: .*tool"):
        list(DryRun(asked, steps(asked), None, True)._data())


def test_the_path_of_a_released_set_goes_to_its_import_alone(tmp_path: Path) -> None:
    """The other stages compose the recipe's own data, which has no such task."""
    path = f"data.tasks.codev_rl.generate.path={tmp_path}/*.parquet"
    found = steps(Reproduction("codev", "node", data="codev_rl", overrides=(path,)))
    assert [step.verb for step in found if path in step.arguments] == ["synth"]
    checking.require_right(found)


@each_case(
    ("recipe", "row", "said"),
    [
        ("codevision", {}, "of each row which operations it needs: required"),
        ("codevision", {"required": []}, None),
        ("codev", {}, "of each row whether it is a visual search: search, boxes, or a source"),
        ("codev", {"search": False}, None),
        ("codedance", {}, None),
    ],
)
def test_a_dry_run_misses_what_the_reward_needs_of_rows(
    tmp_path: Path, recipe: str, row: dict[str, Any], said: str | None
) -> None:
    folder = own_rows(tmp_path, "there.png", "there.png", **row)
    asked = Reproduction(recipe, "node", data="photos", config_dir=folder)
    synth, rl = (next(step for step in steps(asked) if step.verb == stage) for stage in ("synth", "rl"))
    config: Any = compose.build(stage_parts("synth")[0], compose.load("synth", synth.argv({})))
    values = compose.load("rl", rl.argv({})).values
    found = checking.lack(config.data, values, held_out=True)
    assert found is None if said is None else said in str(found)
    tasks = {name: replace(task, test=0) for name, task in config.data.tasks.items()}
    assert "no task has test rows" in str(checking.lack(Data(tasks), values, held_out=True))


def test_a_reward_that_needs_a_judge_of_rows_without_boxes_is_refused_where_none_is_named(tmp_path: Path) -> None:
    """rl would fail at its first tool step, after import, filter and evaluation."""
    folder = own_rows(tmp_path, "there.png", search=True)
    asked = Reproduction("codev", "node", data="photos", config_dir=folder)
    with pytest.raises(ConfigError, match=r"vtcli rl (.|\n)*rows of photos have no boxes .* Name a judge"):
        checking.require_judges(steps(asked))
    checking.require_judges(steps(replace(asked, judge="http://host/v1", judge_model="J")))
    checking.require_judges(steps(replace(asked, recipe="codedance")))


def test_a_bad_first_row_hides_nothing(tmp_path: Path) -> None:
    """With synth.bad_rows=skip the import goes on, and rl would ask of the others."""
    asked = Reproduction("codevision", "node", data="photos", config_dir=own_rows(tmp_path, "gone.png", "there.png"))
    synth, rl = (next(step for step in steps(asked) if step.verb == stage) for stage in ("synth", "rl"))
    config: Any = compose.build(stage_parts("synth")[0], compose.load("synth", synth.argv({})))
    found = checking.lack(config.data, compose.load("rl", rl.argv({})).values, held_out=True)
    assert "which operations it needs" in str(found)


def test_demonstrations_of_another_environment_or_prompt_stop_a_dry_run(tmp_path: Path) -> None:
    """Sft would learn a prompt that rl never shows. Without scale= an import on a machine without GPU is a tiny one."""
    store = ArtifactStore(tmp_path)
    made = compose.load("synth", ["+recipe=codev", "scale=tiny"])
    with store.draft(
        "cold", kind="demos", stage="synth", config=made.values, overrides=("+recipe=codev", "scale=tiny")
    ) as draft:
        (draft.path / "a").write_text("x")
        draft.commit()

    def said(recipe: str, scale: str, *more: str) -> tuple[bool | None, str]:
        one = Reproduction(recipe, scale, demos="cold:v1", overrides=(f"home={tmp_path}", *more))
        (result,) = DryRun(one, steps(one), None, True)._demos()
        return result.ok, result.said

    assert said("codev", "tiny") == (True, "cold:v1")
    assert said("codev", "tiny", "variant=code")[0]  # code runs elsewhere: demonstrations do not show it
    assert "scale=tiny variant=code …" in said("codedance", "tiny", "variant=code")[1]
    ok, text = said("codev", "node")
    assert ok is False and "cold:v1 has another prompt than rl: it is of +recipe=codev scale=tiny" in text
    ok, text = said("codevision", "node")
    assert ok is False and "another env and prompt" in text and "vtcli synth +recipe=codevision scale=node" in text
