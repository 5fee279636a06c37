"""Commands that make what a stage reads. Stages know nothing of each other; the command line knows their order."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

DEMOS, DATA, BASE = "demos", "data", "base"
"""Names of the artifacts that the printed commands make and read."""


def made_by(stage: str, argv: Sequence[str], values: Mapping[str, Any], recipes: Sequence[str]) -> list[str]:
    """Commands that make the inputs of ``rl`` or ``sft`` which the command ``argv`` does not name, and then the command
    itself; empty where nothing of ours makes them. ``values`` is the composed configuration, ``recipes`` are those
    that exist.

    At scale tiny a recipe NAME has a base model of its own, ``tiny_NAME``, or shares ``tiny_base``. At other scales
    the base model is the recipe's and demonstrations are the user's.
    """
    given = [word.lstrip("+") for word in argv]
    recipe = next((word.partition("=")[2] for word in given if word.startswith("recipe=")), "")
    keys = {word.partition("=")[0] for word in given}
    if stage not in ("rl", "sft") or recipe not in recipes or {"data", f"{stage}.data"} & keys:
        return []
    scale, common = str(values["scale"]), [word for word in argv if word.partition("=")[0] in ("seed", "home")]
    own = f"tiny_{recipe}" if f"tiny_{recipe}" in recipes else recipe if recipe.startswith("tiny_") else "tiny_base"

    def line(name: str, *words: str) -> str:
        return shlex.join(["vtcli", name, *words, f"scale={scale}", *common])

    demos = line("synth", f"+recipe={own}", f"name={DEMOS}")
    if stage == "sft":
        repeated = shlex.join(["vtcli", "sft", *argv, f"sft.data={DEMOS}@latest"])
        return [demos, repeated] if scale == "tiny" and recipe == own else []
    data = line("synth", f"+recipe={recipe}", f"name={DATA}")
    base = line("sft", f"+recipe={own}", f"sft.data={DEMOS}@latest", f"name={BASE}")
    needs_base = scale == "tiny" and not {"model", "rl.model"} & keys
    repeated = shlex.join(["vtcli", "rl", *argv, f"rl.data={DATA}@latest"])
    return [*([demos, base] if needs_base else []), data, repeated]
