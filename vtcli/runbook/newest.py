"""The newest artifact that was made for a recipe and a scale, and the reasons to skip newer ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from vtcli.errors import InputError
from vtcli.runs import environment
from vtcli.store import codec
from vtcli.store.artifacts import Artifact, ArtifactStore, Kind


@dataclass(frozen=True)
class Criteria:
    """The facts that an artifact must have."""

    kind: Kind
    stage: str  # that made it; ``vtcli filter`` may have read it since
    recipes: Sequence[str]  # any of these, written as ``Artifact.recipe``
    scale: str
    family: str | None = None  # of a model, or of the views in demonstrations; None: any
    seed: int | None = None  # None: any
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of its configuration, by dotted key
    shipped: bool = True  # may have come with the package


def newest(store: ArtifactStore, wanted: Criteria) -> tuple[Artifact | None, list[str]]:
    """Returns the newest artifact that fits, and a line for each newer one of the same recipe that does not."""
    passed_over: list[str] = []
    same = [artifact for artifact in store.ls() if artifact.kind == wanted.kind]
    for artifact in sorted(same, key=lambda a: (a.manifest.created, a.version), reverse=True):
        source = unfiltered(store, artifact)
        # A shard is a part of a dataset that a merge will read.
        if source.manifest.stage != wanted.stage or source.recipe not in wanted.recipes or _is_shard(source):
            continue
        reason = _difference(source, wanted)
        if reason is None:
            return artifact, passed_over
        passed_over.append(f"{artifact.ref} is not taken: {reason}")
    return None, passed_over


def unfiltered(store: ArtifactStore, artifact: Artifact) -> Artifact:
    """Returns the artifact from which ``vtcli filter`` chose rows, or the artifact itself."""
    known = set[str]()
    while artifact.manifest.stage == "filter" and artifact.ref not in known:  # a forged manifest may name itself
        known.add(artifact.ref)
        parent = next((p for p in artifact.manifest.parents if p.kind == artifact.kind), None)
        if parent is None:
            return artifact
        try:
            artifact = store.resolve(parent.ref, artifact.kind, verify=False)
        except InputError:  # the parent was removed
            return artifact
    return artifact


def _is_shard(artifact: Artifact) -> bool:
    section = cast("Mapping[str, Any]", artifact.manifest.config.get("synth") or {})
    return bool(section.get("shard"))


def _difference(artifact: Artifact, wanted: Criteria) -> str | None:
    """Returns the first fact that the artifact lacks, in words, or None."""
    made = artifact.manifest
    if "added" in made.summary and not wanted.shipped:
        return "it came with vtcli (shipped=false)"
    if made.config.get("scale") != wanted.scale:
        return f"it was made at scale={made.config.get('scale')}"
    if wanted.seed is not None and made.seed != wanted.seed:
        return f"it was made with seed={made.seed}"
    config = {**environment.stored(artifact), **made.config}
    model = cast("Mapping[str, Any]", config.get("model") or {})
    family = config.get("family") or model.get("family")
    if wanted.family is not None and family != wanted.family:
        return f"it is of the model family {family}"
    for key, value in wanted.values.items():
        # Only sections that the manifest records can differ: an older one may lack a section.
        if key.partition(".")[0] in config and (found := at(config, key)) != codec.encode(value):
            shown = json.dumps(found) if not isinstance(found, dict | list) else "another"
            return f"{key} is {shown} there"
    return None


def at(values: Mapping[str, Any], key: str) -> Any:
    """Returns the value at a dotted key, or None without one; list items by index."""
    found: Any = values
    for part in key.split("."):
        if isinstance(found, Mapping):
            found = cast("Mapping[str, Any]", found).get(part)
        elif isinstance(found, list) and part.isdigit() and int(part) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(part)]
        else:
            return None
    return found
