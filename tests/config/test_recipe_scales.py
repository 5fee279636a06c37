"""Every recipe at every scale: composed once, bound, and what the recipe chose stays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from composed import job

from vtcli.cli.config import validate
from vtcli.config import compose, recipes
from vtcli.errors import ConfigError

SIZES = re.compile(
    r"scale|needs(\..*)?|plan\.(lengths|layout)\..*"
    r"|model\.(path|architecture.*|views.*)|sft\.architecture.*|(sft|rl|filter)\.model"  # a model of another size
    r"|images\.(min|max)_pixels|(rl|sft)\.backend\..*|rl\.(compress_logs|keep_images|checkpoint_every)"
    r"|((rl|eval|filter|serve)\.)?agent\.(limits(\..*)?|dtype)|synth\.distil\.limits\..*|engine\..*"
    r"|rl\.(prompts_per_step|group_size|steps_per_phase|phases\.\d+\.steps)|eval\.group_size"
    r"|sft\.(rows_per_step|epochs)"
    r"|(rl|sft)\.optim\.(lr|schedule|weight_decay|freeze_vision)"  # of a tiny model
    r"|(rl|sft)\.optim\.lora\.rank|sft\.max_tokens"  # of a small card: how many weights are trained, how long a row is
)
"""Keys that a scale may change."""


def alone(recipe: str) -> Mapping[str, Any]:
    """The leaves of a recipe without any scale."""
    plan = compose.plan("rl", [f"+recipe={recipe}", "scale=paper"])
    words = tuple(word for word in plan.overrides if word != "+scale=paper")
    return compose.flat(next(compose.jobs(replace(plan, overrides=words))).values)


def changed(recipe: str, scales: Sequence[str]) -> list[str]:
    """Keys that scales change for a recipe and that are no sizes; plug points that do not bind."""
    plain, wrong, folders = alone(recipe), list[str](), [compose.folder()]
    for scale in scales:
        found = job("rl", f"+recipe={recipe}", f"scale={scale}")
        leaves, name = compose.flat(found.values), f"{recipe} {scale}"
        keys = {k for k in plain.keys() | leaves.keys() if plain.get(k, ...) != leaves.get(k, ...)}
        method = {k for k in keys if not SIZES.fullmatch(k) and k.partition(".")[0] not in ("data", "prompt")}
        wrong += [f"{name}: {key} was {plain.get(key)}, is {leaves.get(key)}" for key in sorted(method)]
        if scale != "tiny" and any(key.startswith(("data.", "prompt.")) for key in keys):
            wrong.append(f"{name}: data or prompt are others")
        if compose.check_plug_points(found) < 8 or found.values["scale"] != scale:
            wrong.append(f"{name}: few plug points, or another scale")
        wrong += [f"{name}: {line}" for line in recipes.lost_choices(folders, recipe, None, scale)]
    return wrong


def test_a_scale_changes_sizes_and_nothing_that_a_recipe_chose() -> None:
    """One recipe at every scale; the scales' files hold nothing but sizes. Data come at the scale's size."""
    every = compose.options("scale")
    wrong = changed("codevision", every)
    for scale in every:
        values = yaml.safe_load((compose.folder() / "scale" / f"{scale}.yaml").read_text())
        groups = {key.removeprefix("override /") for entry in values.pop("defaults") for key in entry}
        wrong += [f"{scale}: /{group}" for group in groups - {"data", "model", "prompt", "engine"}]
        wrong += [f"{scale}: {key}" for key in compose.flat(values) if not SIZES.fullmatch(key)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_recipe_at_every_scale_keeps_what_it_chose() -> None:
    wrong = [line for recipe in compose.options("recipe") for line in changed(recipe, compose.options("scale"))]
    assert not wrong, "\n".join(wrong)


FILES = {
    "scale/tiny": "defaults: [{override /data: base_tiny}, {override /prompt: compact}, {override /model: tiny}]\na: 1",
    "scale/gpu": "defaults: [{override /model: small}, {override /engine: vllm}]",
    "scale/paper": "seed: 1",
    "recipe/own": "defaults: [{override /data: own_paper}, _self_]\na: 2",
    "recipe/heir": "defaults: [own, _self_]",
    "recipe/poor": "defaults: [{override /data: poor_paper}]",
    "recipe/plain": "seed: 2",
    "recipe/small": "defaults: [{override /data: own_tiny}]",
    "recipe/rooms": "defaults: [{override /data: my_rooms}, {override /prompt: mine}, {override /engine: servers}]",
    "recipe/late": "defaults: [rooms, {override /prompt: other}, _self_]",
    "recipe/other_family": "defaults: [{override /model: foreign}]",
    "recipe/scratch": "defaults: [{override /model: tiny_foreign}]",
    "recipe/large": "defaults: [{override /model: large}]",
    "variant/rooms_code": "defaults: [{override /prompt: code}]",
    "model/tiny": "{family: qwen, architecture: {heads: 1}}",
    "model/tiny_foreign": "{family: foreign, architecture: {heads: 1}}",
    "model/small": "{family: qwen, architecture: null}",
    "model/large": "{family: qwen, architecture: null}",
    "model/foreign": "{family: foreign, architecture: null}",
    **{f"data/{name}": "tasks: {}" for name in ("base_tiny", "own_tiny", "own_paper", "poor_paper", "my_rooms")},
    "data/my_tiny": "tasks: {}",
}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two folders of files that say nothing but their choices; a user's own is empty."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    return [tmp_path / "nowhere", tmp_path]


def test_what_a_recipe_chose_is_kept_at_each_scale(folders: list[Path]) -> None:
    cases: list[tuple[str, str, dict[str, str]]] = [
        ("own", "tiny", {"data": "own_tiny"}),
        ("heir", "tiny", {"data": "own_tiny"}),  # what the recipe is built upon says it
        ("small", "tiny", {"data": "own_tiny"}),  # a tiny base names its own
        ("poor", "tiny", {"data": "poor_paper"}),  # there is no poor_tiny: the recipe's choice stays
        ("plain", "tiny", {}),
        ("absent", "tiny", {}),  # said elsewhere
        ("own", "paper", {}),  # the recipe's own
        ("own,heir", "tiny", {"data": "own_tiny"}),
        ("rooms", "tiny", {"data": "my_rooms", "prompt": "mine"}),  # my_tiny is no size of my_rooms
        ("late", "tiny", {"data": "my_rooms", "prompt": "other"}),
        ("rooms", "gpu", {"engine": "servers"}),
        ("rooms", "tiny,gpu", {"prompt": "mine", "engine": "servers"}),
        ("other_family", "tiny", {}),  # no tiny model: the scale's
        ("scratch", "tiny", {"model": "tiny_foreign"}),
    ]
    found = {(recipe, scale): recipes.kept_choices(folders, recipe, None, scale) for recipe, scale, _ in cases}
    assert found == {(recipe, scale): kept for recipe, scale, kept in cases}
    assert recipes.kept_choices(folders, "rooms", "code", "tiny")["prompt"] == "code"
    for sweep in ("own,plain", "rooms,own"):
        with pytest.raises(ConfigError, match=r"different (data|prompt)"):
            recipes.kept_choices(folders, sweep, None, "tiny")


def test_what_a_scale_replaces_is_told(folders: list[Path]) -> None:
    """A model of another family; of a user's own recipe any value. A smaller model of one family is a size."""
    lost = {name: recipes.lost_choices(folders, name, None, "gpu") for name in ("other_family", "large", "plain")}
    assert {name: len(lines) for name, lines in lost.items()} == {"other_family": 1, "large": 0, "plain": 0}
    assert "model=foreign" in lost["other_family"][0]
    assert not recipes.lost_choices(folders, "scratch", None, "tiny")
    assert "a=1 in place of the recipe's 2" in recipes.lost_values(folders[1], folders, "own", "tiny")[0]


def test_a_users_recipe_keeps_its_prompt_and_data_at_tiny_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "prompt").mkdir()
    (tmp_path / "data").mkdir()
    rows = "{_target_: vtcli.data.importers.rows.generate, path: rooms.jsonl, name: rooms}"
    (tmp_path / "data" / "hf.yaml").write_text(f"tasks: {{rooms: {{test: 3, forms: [answer], generate: {rows}}}}}\n")
    (tmp_path / "prompt" / "mine.yaml").write_text('system: "My own words. {tools}"\n')
    chosen = "  - override /prompt: mine\n  - override /data: hf\n  - override /model: qwen3_vl_4b\n"
    text = f"# @package _global_\ndefaults:\n  - toolsrl\n{chosen}  - _self_\nagent: {{limits: {{max_turns: 2}}}}\n"
    (tmp_path / "recipe" / "mine.yaml").write_text(text)
    where = ["--config-dir", str(tmp_path), "+recipe=mine"]
    for scale in ("tiny", "paper"):
        found = compose.load("rl", [*where, f"scale={scale}"]).values
        assert (found["prompt"]["system"], list(found["data"]["tasks"])) == ("My own words. {tools}", ["rooms"]), scale
    given = compose.load("rl", [*where, "scale=tiny", "prompt=full"]).values["prompt"]["system"]
    assert "My own words" not in given  # the command comes before the recipe
    assert "qwen3_vl_4b" in (compose.plan("rl", [*where, "scale=gpu"]).note or "")
    validate(["mine"], config_dir=tmp_path)
    warned = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warn")]
    assert any("scale=tiny sets agent.limits.max_turns=4 in place of the recipe's 2" in line for line in warned)
    assert any("scale=gpu takes model=qwen2_5_vl_3b" in line for line in warned)
