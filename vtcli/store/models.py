"""Models by name: an artifact, a folder inside one, a Hugging Face folder, or the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vtcli.errors import InputError
from vtcli.foreign import load_json, print_line, read_file
from vtcli.store import disk
from vtcli.store.artifacts import Artifact, ArtifactStore

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
        if self.artifact is not None:
            return {}
        return {f"model/{path.name}": path for path in sorted(self.path.iterdir()) if path.is_file()}

    def location_keys(self, section: str) -> tuple[str, ...]:
        """The keys that say where the model lies, which content says better; which part of an artifact it is counts."""
        inside = self.artifact is not None and self.path.resolve() != self.artifact.path.resolve()
        return () if inside else (f"{section}.model",)


def source_model(store: ArtifactStore, model: str, *, verify: bool = True) -> ModelSource:
    """Opens a model by artifact reference (``NAME:vN``, ``NAME@latest``, its folder), by a folder inside an artifact
    (``policy:v1/phases/tools``), by Hugging Face folder, or by hub name. ``verify=False`` does not hash its files.
    A name that the store does not have and the package ships (``base@latest``) is copied into the store first.

    Raises:
        InputError: the model is missing, damaged, or of another kind.
    """
    if Path(model, "config.json").is_file() and not Path(model, "manifest.json").is_file():
        return ModelSource(Path(model), model)
    if Path(model, "adapter_config.json").is_file():
        raise InputError(_adapter_alone(Path(model)))
    match = re.fullmatch(r"([^/]+(?::v\d+|@latest))(?:/(.+))?", model)
    if match or Path(model).exists() or ":" in model or "@" in model:
        reference, inside = match.groups() if match else (model, None)
        if match:
            add_shipped(store, reference)
        artifact = store.resolve(reference, "model", verify=verify)
        path = artifact.path / (inside or "")
        if not (path / "config.json").is_file():
            have = sorted(str(p.parent.relative_to(artifact.path)) for p in artifact.path.rglob("config.json"))
            raise InputError(f"{model} holds no model; {artifact.ref} has models in: {', '.join(have)}")
        return ModelSource(path, f"{artifact.ref}/{inside}" if inside else artifact.ref, artifact)
    return ModelSource(hub_folder(model), model)


def _adapter_alone(folder: Path) -> str:
    """The words for a folder in PEFT's format, which has no weights of its model."""
    try:
        base = load_json(read_file(folder / "adapter_config.json"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base = None
    advice = (
        "Merge it first, by peft's PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained(out), "
        "add the processor's files of the base, and give model=out"
    )
    if (folder.parent / "config.json").is_file():
        advice = f"Give {folder.parent}, which holds the merged model"
    return f"{folder} holds an adapter of {base or 'a model that it does not name'}, and no model. {advice}."


def add_shipped(store: ArtifactStore, reference: str) -> None:
    """Copies the artifact of the package that ``reference`` names into a store that has no artifact of that name."""
    name = re.split("[:@]", reference)[0]
    for shipped in () if store.has(name) else ArtifactStore(SHIPPED).newest(name):
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
