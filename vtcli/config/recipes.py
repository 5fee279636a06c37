"""Facts from a recipe's files before anything is composed: its choices, its data and its variants.

A recipe names its data at paper size (``override /data: codev_paper``). A scale that sets the data's size (``override
/data: toolsrl_tiny``) takes the recipe's sibling of that size, ``codev_tiny``, if one exists. Other choices of a
recipe, such as its prompt, hold at every scale. A variant is a file ``variant/<recipe>_<variant>.yaml`` that is laid
over the recipe: the paper's released code (``code``), or one of the paper's ablations.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from vtcli.config.binding import nearest
from vtcli.errors import ConfigError

PAPER = "paper"
"""The variant that every recipe has: the unchanged recipe."""


def names(folders: Sequence[Path], group: str) -> list[str]:
    """Returns the choices of a group in all folders."""
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def variants(folders: Sequence[Path], recipe: str) -> list[str]:
    """Returns the variants of a recipe, the paper's first."""
    found = (name.removeprefix(f"{recipe}_") for name in names(folders, "variant") if name.startswith(f"{recipe}_"))
    return [PAPER, *sorted(set(found) - {PAPER})]


def choose_variant(folders: Sequence[Path], recipe: str | None, variant: str) -> str:
    """Returns the file of ``variant``. Recipe and variant may be lists, as in a sweep.

    Raises:
        ConfigError: no such variant, or not of this recipe, or no recipe.
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
        # ``paper`` is one file for all recipes; every other variant has a file for each recipe.
        chosen.append({PAPER if each == PAPER else f"{name}_{each}" for name in recipes})
    # Hydra would combine every recipe with every file, also with those of other recipes.
    if any(len(files) > 1 for files in chosen):
        raise ConfigError(f"variant={variant} of several recipes: run them one after another")
    return ",".join(name for files in chosen for name in files)


def kept_choices(folders: Sequence[Path], recipe: str, variant: str | None, scale: str) -> dict[str, str]:
    """Returns the choices of a recipe or its variant, by group, that the scale's file would replace, because a scale
    fills in only what neither recipe nor command chose. Data and model have sizes: data are taken at the scale's size
    (``codev_tiny`` for ``codev_paper``) if that exists, and a model stays if both are built from scratch. For several
    recipes, as in a sweep, returns their common choices.

    Raises:
        ConfigError: the recipes choose differently.
    """
    if "," in scale:  # a sweep over scales: data and model differ between them
        each = [kept_choices(folders, recipe, variant, one) for one in scale.split(",")]
        return {group: c for choices in each for group, c in choices.items() if group not in ("data", "model")}
    scales = _overrides(folders, "scale", scale)
    found = [
        _kept(folders, scales, _chosen(folders, name, each))
        for name in recipe.split(",")
        for each in (variant or "").split(",")
    ]
    for group in sorted({group for choices in found for group in choices}):
        values = {choices.get(group, scales[group]) for choices in found}
        if len(values) > 1:
            raise ConfigError(
                f"recipe={recipe} at scale={scale}: these recipes use different {group} ({', '.join(sorted(values))}); "
                f"run them one after another, or choose the {group} of all with {group}=NAME"
            )
    return {group: choice for group, choice in found[0].items() if choice != scales[group]}


def lost_choices(folders: Sequence[Path], recipe: str, variant: str | None, scale: str) -> list[str]:
    """Returns a line for each choice of a recipe that the scale replaces by more than a size: another model family."""
    scales, chosen = _overrides(folders, "scale", scale), _chosen(folders, recipe, variant)
    mine, other = chosen.get("model"), scales.get("model")
    if mine is None or other is None or "model" in kept_choices(folders, recipe, variant, scale):
        return []
    families = [_value(folders, "model", each, "family") for each in (mine, other)]
    if families[0] == families[1]:
        return []
    return [f"scale={scale} takes model={other} in place of the recipe's {mine}: give model={mine} to keep it"]


def lost_values(folder: Path, folders: Sequence[Path], recipe: str, scale: str) -> list[str]:
    """Returns a line for each value in a recipe's file below ``folder`` that the scale's file changes."""
    mine = _leaves(_read(_file([folder], "recipe", recipe)))
    other = _leaves(_read(_file(folders, "scale", scale)))
    keys = sorted(key for key in mine.keys() & other.keys() if mine[key] != other[key])
    return [
        f"scale={scale} sets {key}={other[key]} in place of the recipe's {mine[key]}: give {key}={mine[key]} to keep it"
        for key in keys
    ]


def _kept(folders: Sequence[Path], scales: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    found = {group: chosen[group] for group in scales.keys() & chosen.keys()}
    if (data := found.get("data")) is not None:
        stem, _, size = data.rpartition("_")
        # The data of a paper have names by size, so a scale means the same questions in another number.
        sibling = f"{stem}_{scales['data'].rpartition('_')[2]}"
        found["data"] = sibling if size in SIZES and sibling in names(folders, "data") else data
    if (model := found.get("model")) is not None:
        # A family from scratch is part of the method (Qwen3-VL or LLaVA), a size of it is not.
        built = [_value(folders, "model", each, "architecture") is not None for each in (model, scales["model"])]
        if not all(built):  # then the scale's model is of another size
            del found["model"]
    return found


SIZES = ("tiny", "gpu", "node", "paper")
"""Endings of data sets that exist at several sizes."""


def _chosen(folders: Sequence[Path], recipe: str, variant: str | None) -> dict[str, str]:
    """Returns a recipe's choices of groups: those of its bases, its own, and those of its variant, which win."""
    chosen: dict[str, str] = {}
    # From the most basic to the recipe itself, so that the nearer choice wins.
    for name in reversed(built_upon(folders, recipe)):
        chosen |= _overrides(folders, "recipe", name)
    if variant not in (None, "", PAPER):
        chosen |= _overrides(folders, "variant", f"{recipe}_{variant}")
    return chosen


def built_upon(folders: Sequence[Path], recipe: str) -> list[str]:
    """Returns a recipe and the recipes that it builds upon, the nearest first."""
    bases = [entry for entry in _defaults(folders, "recipe", recipe) if isinstance(entry, str) and entry != "_self_"]
    return [recipe, *(name for base in bases for name in built_upon(folders, base))]


def _overrides(folders: Sequence[Path], group: str, name: str) -> dict[str, str]:
    """Returns the choices of groups in a file's defaults list (``override /data: NAME``)."""
    entries = [cast("dict[str, Any]", entry) for entry in _defaults(folders, group, name) if isinstance(entry, dict)]
    pairs = ((key.removeprefix("override ").strip("/ "), value) for entry in entries for key, value in entry.items())
    return {key: str(value) for key, value in pairs if "@" not in key and isinstance(value, str)}


def _defaults(folders: Sequence[Path], group: str, name: str) -> list[Any]:
    """Returns the entries of a file's defaults list; empty without the file."""
    return cast("list[Any]", _read(_file(folders, group, name)).get("defaults") or [])


def _file(folders: Sequence[Path], group: str, name: str) -> Path | None:
    return next((path for folder in folders if (path := folder / group / f"{name}.yaml").is_file()), None)


def _read(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    found = path.stat()
    return _parsed(path, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, changed_ns: int, size: int) -> Mapping[str, Any]:
    """Returns the values of a file in one state, because planning one command reads some fifteen files again."""
    del changed_ns, size
    values: Any = yaml.safe_load(path.read_text())  # by libyaml, which ``compose`` sets: an eighth of the time
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {}


def _value(folders: Sequence[Path], group: str, name: str, key: str) -> Any:
    return _read(_file(folders, group, name)).get(key)


def _leaves(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Returns a file's values by dotted key, without its defaults list and references to other keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{where}{name}"
        if isinstance(value, dict):
            found |= _leaves(cast("dict[str, Any]", value), f"{key}.")
        elif key not in ("defaults", "scale") and not (isinstance(value, str) and "${" in value):
            found[key] = value
    return found
