"""The table of a reproduction: figures before and after training, by seed, beside what the paper prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import each_case

from vtcli.config import compose
from vtcli.errors import InputError
from vtcli.runbook import papers, runner
from vtcli.runbook.papers import Reproduction, steps
from vtcli.runbook.step import Step
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.removal import remove


def test_the_table_puts_figures_beside_what_the_paper_prints(tmp_path: Path) -> None:
    store, asked = ArtifactStore(tmp_path), Reproduction("codev", "tiny", seeds=(0, 1))
    published = [
        {"paper": "CodeV", "model": "CodeV-7B-RL", "printed": 84.8},
        {"paper": "CodeDance", "model": "CodeDance-7B", "printed": 84.8},
    ]
    made: dict[str, str] = {}
    for name, value in {"before-s0": 0.5, "report-s0": 0.75, "report-s1": 0.85}.items():
        figure = {"figure": "all", "score": "choices", "value": value, "published": published}
        with store.draft(f"codev-tiny-{name}", "report", seed=0, stage="eval") as draft:
            (draft.path / "benchmarks.json").write_text(json.dumps({"vstar": {"title": "V*", "figures": [figure]}}))
            made[f"codev-tiny-{name}"] = draft.commit().ref
    text = papers.markdown(asked, papers.lines(asked, made, tmp_path))
    assert "| V*, all (choices) | CodeV-7B-RL 84.8 | 50.0 | 75.0 | 85.0 | 80.0 |" in text
    unfinished = made | {"codev-tiny-report-s2": "codev-tiny-report-s2@latest"}
    with store.draft("codev-tiny-report-s2", "report", seed=0) as draft:
        (draft.path / "benchmarks.json").write_text("{}")
        draft.commit()
    remove(store, ["codev-tiny-report-s2:v1"], with_dependants=False)
    assert papers.markdown(asked, papers.lines(asked, unfinished, tmp_path)) == text
    with pytest.raises(InputError, match=r"codev-tiny: .*--table"):
        papers.lines(asked, {"codev-tiny-report-s2": "codev-tiny-report-s2@latest"}, tmp_path)


def test_the_table_of_held_out_rows_compares_a_seed_with_its_own_beginning(tmp_path: Path) -> None:
    """Joint and conditional faithfulness by their names; a seed that has not ended moves no mean."""
    store, asked = ArtifactStore(tmp_path), Reproduction("codev", "tiny", seeds=(0, 1))
    made: dict[str, str] = {}
    for name, accuracy in {"before-s0": 0.2, "before-s1": 0.6, "report-s0": 0.5}.items():
        values = {"accuracy": accuracy, "faithful": accuracy / 2, "faithful_if_right": 0.5}
        summary = {f"answer.all.{key}": value for key, value in values.items()}
        with store.draft(f"codev-tiny-{name}", "report", seed=0, stage="eval") as draft:
            (draft.path / "rows.jsonl").write_text("")
            made[f"codev-tiny-{name}"] = draft.commit(summary).ref
    text = papers.markdown(asked, papers.lines(asked, made, tmp_path))
    assert "| answer accuracy | – | 0.200 | 0.500 | 0.500 |" in text
    assert "| right and faithful | – | 0.100 | 0.250 | 0.250 |" in text
    assert "| faithful, of the right | – | 0.500 | 0.500 | 0.500 |" in text


def test_the_table_says_how_a_printed_number_was_scored(tmp_path: Path) -> None:
    store, asked = ArtifactStore(tmp_path), Reproduction("toolsrl", "tiny")
    row = {"paper": "ToolsRL", "model": "ToolsRL", "printed": 46.5, "scored": "Qwen2.5-VL-72B as a judge"}
    silent = {"paper": "ToolsRL", "model": "Base", "printed": 28.4, "scored": "not stated"}
    figure = {"figure": "macro", "score": "exact", "value": 0.25, "published": [silent, row]}
    with store.draft("toolsrl-tiny-report-s0", "report", seed=0, stage="eval") as draft:
        (draft.path / "benchmarks.json").write_text(json.dumps({"p": {"title": "P", "figures": [figure]}}))
        made = {"toolsrl-tiny-report-s0": draft.commit().ref}
    text = papers.markdown(asked, papers.lines(asked, made, tmp_path))
    assert "| P, macro (exact) | Base 28.4, ToolsRL 46.5 (by Qwen2.5-VL-72B as a judge) |" in text


@each_case(("recipe", "word"), [("pyvision_image", "rl.group_size=4"), ("toolsrl", "variant=mixed")])
def test_what_the_same_words_made_is_not_called_different(tmp_path: Path, recipe: str, word: str) -> None:
    """A recipe's data at a scale, and the full name of a variant, are written into artifacts and not into commands."""
    asked = steps(Reproduction(recipe, "tiny", name="x", overrides=(word, f"home={tmp_path}")))
    store = ArtifactStore(tmp_path)
    for step in asked:
        overrides = compose.plan(step.verb, step.argv({})).overrides
        overrides = (*overrides, "synth.merge=4") if step.verb == "synth" else overrides  # as jobs make it
        with store.draft(step.makes, "report", seed=0, stage=step.verb, overrides=overrides) as draft:
            (draft.path / "content").write_text(step.makes)
            draft.commit()
    assert list(runner.differing(asked, tmp_path)) == []
    other = steps(Reproduction(recipe, "tiny", name="x", overrides=("rl.group_size=2", f"home={tmp_path}")))
    made = [line for line in runner.differing(other, tmp_path) if "policy" in line]
    assert len(made) == 1 and made[0].endswith("in place of rl.group_size=2")


def test_a_report_of_a_model_that_was_made_again_is_named(tmp_path: Path) -> None:
    """Base and policy are made anew with other words, and the report is of before."""
    asked = steps(Reproduction("codev", "tiny", name="x", overrides=(f"home={tmp_path}",)))
    store, newest = ArtifactStore(tmp_path), dict[str, Artifact]()

    def make(step: Step, text: str) -> None:
        parents = [newest[name] for name in step.reads.values()]
        with store.draft(step.makes, "report", parents=parents, seed=0, stage=step.verb) as draft:
            (draft.path / "content").write_text(text)
            newest[step.makes] = draft.commit()

    for step in asked:
        make(step, step.makes)
    assert list(runner.differing(asked, tmp_path)) == []
    for step in asked:
        if step.makes in ("x-tiny-base-s0", "x-tiny-policy-s0"):
            make(step, f"{step.makes} again")
    assert list(runner.differing(asked, tmp_path)) == [
        "x-tiny-before-s0:v1 was made from x-tiny-base-s0:v1 in place of x-tiny-base-s0:v2",
        "x-tiny-clean:v1 was made from x-tiny-base-s0:v1 in place of x-tiny-base-s0:v2",
        "x-tiny-report-s0:v1 was made from x-tiny-policy-s0:v1 in place of x-tiny-policy-s0:v2",
    ]
