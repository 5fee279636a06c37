"""Facts from a recipe's files, read before anything is composed: its data and its variants.

A recipe names its data at paper size (``override /data: codev_paper``). A scale with data of its own size (``override
/data: toolsrl_tiny``) takes the recipe's sibling of that size, ``codev_tiny``, where it exists. A variant is a file
``variant/<recipe>_<variant>.yaml`` that is laid over the recipe: the paper's released
code (``code``), or one of the paper's ablations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from vtcli.config.binding import nearest
from vtcli.errors import ConfigError

PAPER = "paper"
"""The variant that every recipe has: the recipe as it stands."""


def names(folders: Sequence[Path], group: str) -> list[str]:
    """The choices of a group in all folders."""
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def variants(folders: Sequence[Path], recipe: str) -> list[str]:
    """The variants of a recipe, the paper's first."""
    found = (name.removeprefix(f"{recipe}_") for name in names(folders, "variant") if name.startswith(f"{recipe}_"))
    return [PAPER, *sorted(set(found) - {PAPER})]


def choose_variant(folders: Sequence[Path], recipe: str | None, variant: str) -> str:
    """The file of ``variant`` that says so; recipe and variant may be several, as in a sweep.

    Raises:
        ConfigError: no such variant, or none of this recipe, or no recipe.
    """
    recipes, wanted = (recipe or "").split(","), variant.split(",")
    if recipe is None:
        raise ConfigError(
            f"variant={variant} needs a recipe, such as +recipe=codevision: a variant is a reading of a paper"
        )
    every = sorted({each for name in names(folders, "recipe") for each in variants(folders, name)})
    chosen: list[set[str]] = []
    for each in wanted:
        if each not in every:
            raise ConfigError(f"variant={variant}: there is no variant {each!r}.{nearest(each, every)}")
        without = [name for name in recipes if each not in variants(folders, name)]
        if without:
            having = [name for name in names(folders, "recipe") if each in variants(folders, name)]
            raise ConfigError(
                f"variant={variant}: the recipe {without[0]} has no variant {each!r}, only "
                f"{', '.join(map(repr, variants(folders, without[0])))}. Recipes with it: {', '.join(having)}."
            )
        chosen.append({PAPER if each == PAPER else f"{name}_{each}" for name in recipes})
    if any(len(files) > 1 for files in chosen):
        raise ConfigError(f"variant={variant} of several recipes: run them one after another")
    return ",".join(name for files in chosen for name in files)


def data_at(folders: Sequence[Path], recipe: str, scale: str) -> str | None:
    """The choice of ``conf/data`` for a recipe at a scale, where it is neither the recipe's nor the scale's own; of
    several recipes, as in a sweep, the one that they share.

    Raises:
        ConfigError: several recipes that use different data at this scale.
    """
    own = _data_of(folders, "scale", scale)
    if own is None:
        return None
    size, known = own.rpartition("_")[2], names(folders, "data")
    found: set[str] = set()
    for name in recipe.split(","):
        stem = (_data_of(folders, "recipe", name) or own).rpartition("_")[0]
        found.add(f"{stem}_{size}" if f"{stem}_{size}" in known else own)
    if len(found) > 1:
        raise ConfigError(
            f"recipe={recipe} at scale={scale}: these recipes use different data ({', '.join(sorted(found))}); run "
            "them one after another, or choose the data of all with data=NAME"
        )
    (data,) = found
    return None if data == own else data


def built_upon(folders: Sequence[Path], recipe: str) -> list[str]:
    """A recipe and those that it builds upon, the nearest first."""
    bases = [entry for entry in _defaults(folders, "recipe", recipe) if isinstance(entry, str) and entry != "_self_"]
    return [recipe, *(name for base in bases for name in built_upon(folders, base))]


def _data_of(folders: Sequence[Path], group: str, name: str) -> str | None:
    """``override /data`` of a file, or of the one that it builds upon."""
    entries = _defaults(folders, group, name)
    for entry in entries:
        if isinstance(entry, dict) and "override /data" in entry:
            return str(cast("dict[str, Any]", entry)["override /data"])
    bases = [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]
    inherited = (_data_of(folders, group, base) for base in reversed(bases))
    return next((data for data in inherited if data is not None), None)


def _defaults(folders: Sequence[Path], group: str, name: str) -> list[Any]:
    """Entries of the defaults list of a file; none where there is no such file."""
    path = next((p for folder in folders if (p := folder / group / f"{name}.yaml").is_file()), None)
    values: Any = yaml.safe_load(path.read_text()) if path else None
    return cast("list[Any]", values.get("defaults") or []) if isinstance(values, dict) else []
