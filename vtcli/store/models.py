"""Models by name: an artifact, a folder inside one, a Hugging Face folder, or the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vtcli.errors import InputError
from vtcli.foreign import print_line
from vtcli.store import disk
from vtcli.store.adapters import CONFIG, merged
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.manifest import MANIFEST

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"
"""A store of artifacts that come with the package (``make tiny-base``)."""

SHIPPED_WAIT_S = 60.0
"""Limit on the time for which a rank waits for another that copies a shipped model, which takes less than a second."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A Hugging Face folder, and the artifact that it belongs to where there is one."""

    path: Path
    name: str  # in reports: "policy:v1/phases/tools"; as it was given where there is no artifact
    artifact: Artifact | None = None

    @property
    def parents(self) -> list[Artifact]:
        return [] if self.artifact is None else [self.artifact]

    @property
    def files(self) -> dict[str, Path]:
        """The model's files where no artifact vouches for their content, by names that do not say where they lie."""
        if self.artifact is not None and self.path.resolve().is_relative_to(self.artifact.path.resolve()):
            return {}
        return {f"model/{path.name}": path for path in sorted(self.path.iterdir()) if path.is_file()}

    def content(self, digests: Mapping[str, str]) -> list[str]:
        """Digests of the weights, and of all that lies beside them. ``digests`` has those of ``files``."""
        if files := self.files:
            return [f"{name} {digests[name]}" for name in sorted(files)]
        assert self.artifact is not None
        return [self.artifact.digest, str(self.path.relative_to(self.artifact.path))]

    def location_keys(self, section: str) -> tuple[str, ...]:
        """The keys that name the model's place, which its content identifies better; the part of an artifact counts."""
        inside = self.artifact is not None and self.path.resolve() != self.artifact.path.resolve()
        return () if inside else (f"{section}.model",)


def source_model(store: ArtifactStore, model: str, *, verify: bool = True) -> ModelSource:
    """Opens a model by artifact reference (``NAME:vN``, ``NAME@latest``, its folder), by a folder inside an artifact
    (``policy:v1/phases/tools``), by Hugging Face folder, or by hub name. ``verify=False`` does not hash its files.
    A name that the store does not have and the package ships (``base@latest``) is copied into the store first.
    An adapter alone is merged with the base that it names.

    Raises:
        InputError: the model is missing, damaged, or of another kind, or an adapter's base is.
    """
    found = _located(store, model, verify)
    if not _is_adapter(found.path):
        return found
    return replace(found, path=merged(store.root, found.path, lambda base: _base(store, base)))


def _base(store: ArtifactStore, name: str) -> Path:
    folder = _located(store, name, verify=False).path
    if _is_adapter(folder):
        raise InputError(f"{folder} is an adapter itself; expected a model.")
    return folder


def _is_adapter(folder: Path) -> bool:
    # A folder with weights of its own is a model, whatever adapter lies beside them.
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def _located(store: ArtifactStore, model: str, verify: bool) -> ModelSource:
    folder = Path(model)
    if not (folder / MANIFEST).is_file() and ((folder / "config.json").is_file() or (folder / CONFIG).is_file()):
        return ModelSource(folder, model)
    # An artifact's reference may go on into it, because a run keeps a model for each phase.
    match = re.fullmatch(r"([^/]+(?::v\d+|@latest))(?:/(.+))?", model)
    if match or Path(model).exists() or ":" in model or "@" in model:
        reference, inside = match.groups() if match else (model, None)
        if match:
            add_shipped(store, reference)
        artifact = store.resolve(reference, "model", verify=verify)
        path = artifact.path / (inside or "")
        if not ((path / "config.json").is_file() or (path / CONFIG).is_file()):
            have = sorted(str(p.parent.relative_to(artifact.path)) for p in artifact.path.rglob("config.json"))
            raise InputError(f"{model} holds no model; {artifact.ref} has models in: {', '.join(have)}")
        return ModelSource(path, f"{artifact.ref}/{inside}" if inside else artifact.ref, artifact)
    return ModelSource(hub_folder(model), model)


def add_shipped(store: ArtifactStore, reference: str) -> None:
    """Copies the artifact of the package that ``reference`` names into a store that has no artifact of that name."""
    name = re.split("[:@]", reference)[0]
    for shipped in () if store.has(name) else ArtifactStore(SHIPPED).newest(name):
        # Another version of that name is not the shipped one, and asking for it shall fail as usual.
        if reference not in (f"{name}@latest", shipped.ref):
            continue
        with disk.locked(store.root / ".shipped.lock", SHIPPED_WAIT_S, "the copy of a shipped model"):
            if store.has(name):  # another rank was quicker
                return
            added = store.add(shipped.path)
        print_line(f"vtcli: {added.ref} comes with vtcli, and was added to {store.root}")


def hub_folder(name: str) -> Path:
    """The local folder of a hub model, downloaded when it is not in the cache (``HF_HOME``, ``HF_HUB_OFFLINE``).

    Raises:
        InputError: it is neither cached nor reachable.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name))
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"model {name!r} is neither an artifact, a folder, nor to be had from the hub: {first} "
            "Give a model artifact (vtcli artifacts ls), a local folder, or make the hub reachable."
        ) from error
