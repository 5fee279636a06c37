"""Manifest of a finished artifact: its type, a strict reader, and the comparison with the files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vtcli.errors import InputError
from vtcli.schema import SCHEMA_VERSION
from vtcli.store import codec, disk

Kind = Literal["dataset", "demos", "model", "trajectories", "report", "scores", "comparison", "facts"]

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an artifact; ``path`` is relative to its folder, with forward slashes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Parent:
    """An artifact that this one was made from."""

    ref: str
    kind: str
    digest: str
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Type and origin of an artifact. ``digest`` is its content: the sha256 over kind, schema version and files.
    ``fingerprint`` is its identity: its request and its inputs (``vtcli.runs.identity``)."""

    schema_version: int
    name: str
    version: int
    kind: Kind
    digest: str
    files: tuple[FileEntry, ...]
    parents: tuple[Parent, ...]
    config: Mapping[str, Any]
    seed: int | None
    fingerprint: str
    git_commit: str | None  # of the code; ends in "-dirty" when it was changed since
    created: str  # ISO 8601, UTC
    stage: str = ""
    run_id: str | None = None  # of MLflow
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what ``fingerprint`` is of; older: empty
    overrides: tuple[str, ...] = ()  # of the command line, in a sweep this job's own


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished version on disk."""

    name: str
    version: int
    path: Path
    manifest: Manifest

    @property
    def ref(self) -> str:
        """``NAME:vN``."""
        return f"{self.name}:v{self.version}"

    @property
    def kind(self) -> Kind:
        return self.manifest.kind

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def size(self) -> int:
        """Bytes of all files; equal ones are links, and count once."""
        return sum({entry.sha256: entry.size for entry in self.manifest.files}.values())

    @property
    def recipe(self) -> str:
        """Recipe as it was chosen on the command line, with a variant other than the paper's; "" without one."""
        pairs = (word.lstrip("+").partition("=") for word in self.manifest.overrides)
        chosen: dict[str, str] = {key: value for key, _, value in pairs}
        variant = chosen.get("variant", "").removeprefix(f"{chosen.get('recipe', '')}_")
        return chosen.get("recipe", "") + (f"/{variant}" if variant not in ("", "paper") else "")


def load(path: Path) -> Artifact:
    """The artifact in a folder, by its manifest. Raises ``InputError`` when that is missing or corrupt."""
    file = path / MANIFEST
    if path.is_dir() and not file.exists():
        raise InputError(
            f"The folder {path} has no manifest: it is no artifact. Remove it if it was one, or look elsewhere."
        )
    with disk.checked(file, "read the manifest"):
        data = file.read_bytes()
    try:
        value = json.loads(data)
        checksum = value.pop("checksum")
        if value.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"schema version {value.get('schema_version')}; this vtcli reads {SCHEMA_VERSION}")
        manifest = codec.decode(Manifest, value)
        if checksum != _sha(value) or manifest.digest != content_digest(manifest.kind, manifest.files):
            raise ValueError("its checksum does not fit: it was changed after it was written")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"The manifest {file} is corrupt ({error}). Remove the folder {path} and make the artifact again."
        ) from error
    return Artifact(manifest.name, manifest.version, path, manifest)


def in_short(values: Mapping[str, Any], most: int = 20) -> dict[str, Any]:
    """A manifest's values for a person: of more than ``most`` files, those of a folder as their number and size."""
    out, files = dict(values), list(values["files"])
    if len(files) > most:
        out["files"] = [entry for entry in files if "/" not in entry["path"]][:most]
        folders: dict[str, list[int]] = {}
        for entry in files:
            folder = entry["path"].rpartition("/")[0].partition("/")[0] if "/" in entry["path"] else "."
            folders.setdefault(folder, []).append(entry["size"])
        out["folders"] = {name: f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB" for name, sizes in folders.items()}
    known = dict(values.get("identity", {}).get("files", {}))
    if len(known) > most:
        out["identity"] = {**values["identity"], "files": f"{len(known)} files; --all lists them"}
    return out


def content_digest(kind: str, files: Sequence[FileEntry]) -> str:
    """sha256 over what an artifact holds, whatever it is called and whenever it was made."""
    return _sha({"kind": kind, "schema_version": SCHEMA_VERSION, "files": codec.encode(files)})


def file_problems(artifact: Artifact) -> list[str]:
    """Files that are missing, changed or added since the commit; hashes everything."""
    problems: list[str] = []
    for entry in artifact.manifest.files:
        path = artifact.path / entry.path
        try:
            size = path.stat().st_size
            if size != entry.size:
                problems.append(f"{entry.path} has {size} bytes instead of {entry.size}")
            elif hash_file(path) != entry.sha256:
                problems.append(f"{entry.path} has another content (sha256)")
        except OSError as error:
            problems.append(f"{entry.path} cannot be read ({error.strerror})")
    expected = {entry.path for entry in artifact.manifest.files} | {MANIFEST}
    added = sorted(p.relative_to(artifact.path).as_posix() for p in artifact.path.rglob("*") if not p.is_dir())
    return problems + [f"{name} was added" for name in added if name not in expected]


def hash_file(path: Path) -> str:
    """sha256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_commit() -> str | None:
    """The commit of this package's checkout, with "-dirty" when files were changed; None outside a checkout. A checkout
    of something else around an installed package does not count."""
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def write(folder: Path, manifest: Manifest) -> None:
    """Puts the manifest, with a checksum over all of it, into ``folder``."""
    value = codec.encode(manifest)
    text = json.dumps(value | {"checksum": _sha(value)}, indent=1, sort_keys=True, ensure_ascii=False)
    disk.write_atomic(folder / MANIFEST, text.encode() + b"\n")


def seal(folder: Path) -> tuple[FileEntry, ...]:
    """Syncs and hashes everything below ``folder``; temporary files of killed writers are removed first.

    Raises ``InputError`` for links and for no file at all.
    """
    entries: list[FileEntry] = []
    for path in folder.rglob(f"*{disk.LEFTOVER}"):
        path.unlink()
    for place, folders, names in os.walk(folder, topdown=False):
        for path in (Path(place) / name for name in (*folders, *names)):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise InputError(f"{path} is a link or a special file; an artifact holds plain files. Copy the file.")
        for path in (Path(place) / name for name in names):
            disk.fsync_file(path)
            entries.append(FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, hash_file(path)))
        disk.fsync_dir(Path(place))
    if not entries:
        raise InputError(f"The artifact in {folder} would hold no file; write its files there first.")
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _sha(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
