"""The environment that a model was trained in, as its manifest has it: what ``vtcli serve`` opens for the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from vtcli.errors import InputError
from vtcli.store import codec
from vtcli.store.artifacts import Artifact
from vtcli.store.sources import targets

PARTS = ("env", "prompt", "images", "limits")
"""Parts of an environment: the world, its prompt, the sizes of views, and the budgets of a trajectory."""

KNOWN = ("vtcli.envs.", "vtcli.tools.")
"""Modules whose functions a manifest may name. Another one is code of somebody's, which a user must name."""


def recorded(job: Mapping[str, Any], demos: Artifact | None = None) -> dict[str, str]:
    """An entry for the summary of a model's manifest, as JSON text: a manifest sorts keys, and tools have an order.

    Nothing where the demonstrations were made in another environment than the configuration's.
    """
    made = demos.manifest.config if demos and demos.manifest.stage == "synth" else {}
    if any(made.get(key) not in (None, job.get(key)) for key in ("env", "prompt")):
        return {}
    agent = cast("Mapping[str, Any]", job.get("rl") or {}).get("agent")
    limits = cast("Mapping[str, Any]", agent or {}).get("limits")
    world = {key: job.get(key) for key in ("env", "prompt", "images")} | {"limits": limits}
    return {"environment": json.dumps(codec.encode(world), ensure_ascii=False)}


def require_environment(model: Artifact | None, named: str, parts: Sequence[str]) -> dict[str, Any]:
    """The recorded ``parts`` of a model's environment; without ``env`` among them, those that are recorded.

    Raises:
        InputError: the model's manifest has none, or one that is not of this package.
    """
    found = stored(model)
    if "env" not in parts:  # it was given, and the rest has defaults
        parts = [part for part in parts if found.get(part)]
    missing = [part for part in parts if not found.get(part)]
    remedy = "Say in which one it is to be served: +recipe=NAME, or env=NAME; with --config-dir if that is your own."
    if missing:
        why = "its manifest does not name" if model else "it is no artifact of vtcli, so nothing names"
        raise InputError(f"{named}: {why} the environment that it was trained in ({', '.join(missing)}). {remedy}")
    chosen = {part: found[part] for part in parts}
    foreign = [path for path in targets(chosen) if not path.startswith(KNOWN)]
    if foreign:
        raise InputError(f"{named}: its environment is code from outside ({', '.join(foreign)}). {remedy}")
    return chosen


def stored(model: Artifact | None) -> Mapping[str, Any]:
    """The environment that a model's manifest records; empty without one."""
    text = model.manifest.summary.get("environment") if model else None
    return json.loads(text) if isinstance(text, str) else {}
