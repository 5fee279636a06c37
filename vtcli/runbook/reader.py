"""The command that reads an artifact: the last line of every command."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from vtcli.config import commandline
from vtcli.runs.closing import say_next
from vtcli.store.artifacts import Artifact

LESSONS = "tiny_"
"""Begins the name of a recipe that teaches a tiny model what another recipe starts from."""


def say_next_of(artifact: Artifact, flags: Sequence[str] = ()) -> None:
    """Prints the command that reads an artifact, with the recipe, scale and ``flags`` of the command that made it."""
    say_next(*command(artifact, flags))


def command(artifact: Artifact, flags: Sequence[str] = ()) -> list[str]:
    """Returns the words after ``vtcli`` of the command that reads an artifact."""
    made, home = artifact.manifest, artifact.path.parents[1]
    # A command that is typed in the same shell finds the usual home, so only another one is spelt out.
    elsewhere = home.resolve() != Path(os.environ.get("VTCLI_HOME") or "artifacts").resolve()
    option, key = (["--home", str(home)], [f"home={home}"]) if elsewhere else ([], [])
    recipe, _, variant = artifact.recipe.partition("/")
    scale = next((word for each in made.overrides if (word := each.lstrip("+")).startswith("scale=")), "")

    def stage(name: str, recipe: str, *inputs: str) -> list[str]:
        chosen = (f"+recipe={recipe}", variant and f"variant={variant}", scale)
        return [name, *filter(None, chosen), *inputs, *key, *flags]

    parents = {parent.kind: parent.ref for parent in made.parents}
    rolled_out = parents.get("report") or parents.get("model")
    if re.search(r"-shard-\d+-of-\d+$", artifact.name):
        words = [word for word in commandline.as_typed(made.overrides) if not word.startswith(f"{made.stage}.shard=")]
        return [made.stage, *words, f"{made.stage}.merge={artifact.name.rpartition('-')[2]}", *flags]
    match artifact.kind:
        case "demos" if recipe:
            return stage("sft", recipe, f"data={artifact.ref}")
        case "dataset" if recipe and not recipe.startswith(LESSONS):
            return stage("rl", recipe, f"data={artifact.ref}")
        # A tiny base model is taught by a recipe of its own, and the next step is the recipe that starts from it.
        case "model" if recipe and made.stage == "sft":
            taught = recipe.removeprefix(LESSONS)
            return stage("rl", "toolsrl" if taught == "base" else taught, f"model={artifact.ref}")
        case "model" if recipe:
            data = [f"data={parents['dataset']}"] if "dataset" in parents else []
            return stage("eval", recipe, f"model={artifact.ref}", *data)
        case "model":
            return ["serve", f"model={artifact.ref}", *key, *flags]
        case "dataset" | "demos":
            return ["artifacts", "view", artifact.ref, *option, "--open"]
        case "report" | "trajectories":
            return ["view", artifact.ref, *option]
        case "scores" | "comparison" if rolled_out:
            return ["view", rolled_out, *option]
        case _:
            return ["artifacts", "show", artifact.ref, *option]
