"""A command without its inputs names the commands that make them, in order."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from vtcli.cli.pipeline import made_by
from vtcli.cli.stages import run_stage
from vtcli.config import compose
from vtcli.errors import ConfigError

RECIPES = compose.options("recipe")


def test_rl_from_nothing_by_hand() -> None:
    found = made_by("rl", ["+recipe=toolsrl", "seed=3"], {"scale": "tiny"}, RECIPES)
    assert found == [
        "vtcli synth +recipe=tiny_base name=demos scale=tiny seed=3",
        "vtcli sft +recipe=tiny_base sft.data=demos@latest name=base scale=tiny seed=3",
        "vtcli synth +recipe=toolsrl name=data scale=tiny seed=3",
        "vtcli rl +recipe=toolsrl seed=3 rl.data=data@latest",
    ]
    assert (
        made_by("rl", ["recipe=codev"], {"scale": "node"}, RECIPES)[0]
        == "vtcli synth +recipe=codev name=data scale=node"
    )


@pytest.mark.parametrize("recipe", ["toolsrl", "codev", "codevision", "codedance", "pyvision_image", "pyvision_video"])
@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_every_printed_command_composes(recipe: str, scale: str) -> None:
    for command in made_by("rl", [f"+recipe={recipe}", f"scale={scale}"], {"scale": scale}, RECIPES):
        stage, *words = shlex.split(command)[1:]
        job = compose.load(stage, words)
        if stage != "synth":
            assert job.values[stage]["data"].endswith("@latest")


@pytest.mark.parametrize(
    ("stage", "argv"),
    [("rl", ["+recipe=toolsrl", "rl.data=mine:v1"]), ("rl", ["data=mine:v1"]), ("eval", ["+recipe=toolsrl"])],
)
def test_nothing_is_said_of_inputs_that_are_named_or_not_ours(stage: str, argv: list[str]) -> None:
    assert made_by(stage, argv, {"scale": "tiny"}, RECIPES) == []


def test_the_error_names_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTCLI_HOME", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        run_stage("rl", ["+recipe=toolsrl", "scale=tiny"])
    text = str(caught.value)
    assert text.startswith("rl.data: needs a value") and "vtcli sft +recipe=tiny_base sft.data=demos@latest" in text
    assert not list(tmp_path.iterdir())
