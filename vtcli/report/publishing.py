"""A trained model as a plain Hugging Face folder with a model card, and any such folder on the hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from vtcli.data.exporters.writing import new_folder
from vtcli.errors import InputError
from vtcli.foreign import load_json
from vtcli.report.model_card import base_model, card
from vtcli.store import disk
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.models import source_model

ADAPTER_CONFIG = "adapter/adapter_config.json"


def publish(store: ArtifactStore, ref: str, folder: Path, licence: str | None = None) -> list[str]:
    """Copies a model (an artifact, or a part of it as ``policy:v1/best``) into a new folder: weights, configuration,
    tokenizer, processor, the adapter where there is one, and a model card. Returns the names of the files.

    Raises:
        InputError: no model artifact, a damaged one, a folder with something in it, disk trouble.
    """
    source = source_model(store, ref)
    if source.artifact is None:
        raise InputError(f"{ref} is not an artifact, and its lineage is not known. Copy the folder, or give NAME:vN.")
    page = card(store, source, licence)
    with new_folder(folder) as draft:
        for path in sorted([*source.path.iterdir(), *source.path.glob("adapter/*")]):
            name = path.relative_to(source.path)
            if path.is_file() and path.suffix != ".jsonl" and path.name != "manifest.json":  # no logs, no lineage
                (draft / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(path, draft / name)
        if (draft / ADAPTER_CONFIG).is_file():
            _name_base(draft / ADAPTER_CONFIG, base_model(store.lineage(str(source.artifact.path))).name)
        disk.write_atomic(draft / "README.md", page.encode())
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _name_base(config: Path, base: str) -> None:
    """Replaces a folder of this machine in the adapter by the base's public name."""
    values = load_json(config.read_bytes())
    if Path(str(values.get("base_model_name_or_path"))).is_absolute():
        disk.write_atomic(config, json.dumps(values | {"base_model_name_or_path": base}, indent=2).encode())


def push(folder: Path, name: str, kind: str, *, public: bool) -> str:
    """Uploads a folder to the hub (``HF_ENDPOINT``, ``HF_TOKEN``) as OWNER/NAME, a new repository private unless
    ``public``. Returns its address.

    Raises:
        InputError: no way to the hub, no right to write there, a hub that refuses, or a repository that is not private
            without ``public``.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        made = api.create_repo(name, repo_type=kind, private=not public, exist_ok=True)
        # A repository that was there keeps its visibility, whatever ``private`` asks for.
        allowed = public or bool(api.repo_info(made.repo_id, repo_type=kind).private)
        if allowed:
            api.upload_folder(folder_path=folder, repo_id=made.repo_id, repo_type=kind, commit_message="vtcli export")
    except Exception as error:  # the library raises types of its own, of HTTP and of files
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(
            f"{name} was not uploaded to {api.endpoint}: {first[:300]}\n{folder} is whole. Where the hub is in "
            f"reach and `hf auth login` was done: hf upload {name} {folder} --repo-type {kind}"
        ) from error
    if not allowed:
        raise InputError(
            f"{name} was not uploaded to {api.endpoint}: that repository is not private, so everyone could read it. "
            f"Give --public to upload there, make it private, or give another name. {folder} is whole."
        )
    return str(made)
