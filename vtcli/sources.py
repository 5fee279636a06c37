"""Where a model comes from: an artifact, a folder, or the hub."""

from __future__ import annotations

from pathlib import Path

from vtcli.artifacts import Artifact, ArtifactStore


def source_model(store: ArtifactStore, model: str) -> Artifact | Path:
    """A model by artifact reference (``NAME:vN``, ``NAME@latest``, its folder), by Hugging Face folder, or by hub name.

    Raises:
        InputError: there is none, or it is damaged, or of another kind.
    """
    if Path(model, "config.json").is_file() and not Path(model, "manifest.json").is_file():
        return Path(model)
    if ":" in model or "@" in model or Path(model).exists():
        return store.resolve(model, "model")
    from vtcli.engines.hf import hub_folder

    return hub_folder(model)
