"""The environment that a model was trained in, as its manifest records it, for ``vtcli serve`` to open."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from vtcli.errors import InputError
from vtcli.store import codec
from vtcli.store.artifacts import Artifact
from vtcli.store.sources import targets

PARTS = ("env", "prompt", "images", "limits")
"""The parts of an environment: the world, its prompt, the sizes of views, and the budgets of a trajectory."""

KNOWN = ("vtcli.envs.", "vtcli.tools.")
"""Modules from which a manifest may name functions. Code from elsewhere must be named by the user, because an artifact
must not choose code to run."""


def recorded(job: Mapping[str, Any], demos: Artifact | None = None) -> dict[str, str]:
    """Returns the environment's entry for a model's manifest, as JSON text because a manifest sorts keys and the order
    of tools matters.

    Returns nothing if the demonstrations were made in another environment than the configuration's.
    """
    made = demos.manifest.config if demos and demos.manifest.stage == "synth" else {}
    if any(made.get(key) not in (None, job.get(key)) for key in ("env", "prompt")):
        return {}
    agent = cast("Mapping[str, Any]", job.get("rl") or {}).get("agent")
    limits = cast("Mapping[str, Any]", agent or {}).get("limits")
    world = {key: job.get(key) for key in ("env", "prompt", "images")} | {"limits": limits}
    return {"environment": json.dumps(codec.encode(world), ensure_ascii=False)}


def require_environment(model: Artifact | None, named: str, parts: Sequence[str]) -> dict[str, Any]:
    """Returns the recorded ``parts`` of a model's environment; without ``env`` among them, those on record.

    Raises:
        InputError: the manifest records none, or one with code from outside this package.
    """
    found = stored(model)
    if "env" not in parts:  # the user named it, and the other parts have defaults
        parts = [part for part in parts if found.get(part)]
    missing = [part for part in parts if not found.get(part)]
    remedy = "Name the environment to serve it in: +recipe=NAME or env=NAME, with --config-dir if it is your own."
    if missing:
        why = "its manifest does not name" if model else "it is not an artifact of vtcli, so nothing names"
        raise InputError(f"{named}: {why} the environment that it was trained in ({', '.join(missing)}). {remedy}")
    chosen = {part: found[part] for part in parts}
    foreign = [path for path in targets(chosen) if not path.startswith(KNOWN)]
    if foreign:
        raise InputError(f"{named}: its environment is code from outside ({', '.join(foreign)}). {remedy}")
    return chosen


def stored(model: Artifact | None) -> Mapping[str, Any]:
    """Returns the environment that a model's manifest records, or an empty mapping."""
    text = model.manifest.summary.get("environment") if model else None
    return json.loads(text) if isinstance(text, str) else {}
