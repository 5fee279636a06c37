"""Manifest of a finished artifact: its type, a strict reader, and the comparison with the files."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedRandom
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

from vtcli.errors import InputError
from vtcli.foreign import load_json
from vtcli.schema import SCHEMA_VERSION
from vtcli.store import codec, disk

Kind = Literal["dataset", "demos", "model", "trajectories", "report", "scores", "comparison", "facts"]

MANIFEST = "manifest.json"

MAX_BYTES = 1 << 28
"""Size of a manifest: 150 bytes a file, so about 1.8 million files."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
"""Pattern of an artifact's name. A folder's name may have 255 bytes, and a shard's gets an ending."""

VERSION = r"v([1-9][0-9]{0,17})"

_REF = re.compile(f"{NAME}:{VERSION}")


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
    version_of_vtcli: str = ""  # that made it; older manifests: empty


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
    """The artifact in a folder, by its manifest. Raises ``InputError`` when that is missing or corrupt, or names a file
    or a parent by anything but a path below the folder and NAME:vN: a manifest may come from anybody."""
    file = path / MANIFEST
    if path.is_dir() and not os.path.lexists(file):
        raise InputError(
            f"The folder {path} has no manifest: it is not an artifact. Remove it if it was one, or look elsewhere."
        )
    with disk.checked(file, "read the manifest"), opened_below(path, MANIFEST) as opened:
        # One byte more than allowed shows that there is more, without reading a file of any size.
        data = opened.read(MAX_BYTES + 1)
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        value = load_json(data)
        checksum = value.pop("checksum")
        if value.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"schema version {value.get('schema_version')}; this vtcli reads {SCHEMA_VERSION}")
        manifest = codec.decode(Manifest, value)
        if checksum != _sha(value) or manifest.digest != content_digest(manifest.kind, manifest.files):
            raise ValueError("its checksum does not fit: it was changed after it was written")
        _check_names(manifest)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"The manifest {file} is corrupt ({error}). Remove the folder {path} and make the artifact again."
        ) from error
    return Artifact(manifest.name, manifest.version, path, manifest)


def _check_names(manifest: Manifest) -> None:
    """Raises ``ValueError`` for a name, a path or a parent that could mean something outside of the folder."""
    if not _REF.fullmatch(f"{manifest.name}:v{manifest.version}"):
        raise ValueError(f"{manifest.name[:60]!r}, version {manifest.version}, is not an artifact's name")
    for parent in manifest.parents:
        if not _REF.fullmatch(parent.ref):
            raise ValueError(f"the parent {parent.ref[:60]!r} is not written NAME:vN")
    known: set[str] = {MANIFEST}
    folders: set[str] = set()
    for entry in manifest.files:
        path = PurePosixPath(entry.path)
        ordinary = path.parts and not path.is_absolute() and ".." not in path.parts and str(path) == entry.path
        if not ordinary or "\\" in entry.path or "\0" in entry.path:
            raise ValueError(f"the file {entry.path[:200]!r} is not a plain path below the folder")
        if any(part.endswith(disk.LEFTOVER) for part in path.parts):  # sealing removes it
            raise ValueError(f"the file {entry.path[:200]!r} has the name of a temporary one")
        if entry.path in known:
            raise ValueError(f"the file {entry.path[:200]!r} is named twice")
        known.add(entry.path)
        folders |= {str(parent) for parent in path.parents}
    if both := known & folders:
        raise ValueError(f"{min(both)[:200]!r} is a file and a folder")


@contextmanager
def opened_below(folder: Path, name: str, *, new: bool = False) -> Generator[BufferedRandom]:
    """The plain file ``name`` below ``folder``, to read, or with ``new`` to make and write with its folders.

    No part of ``name`` is followed where it is a link, and a pipe or a device is not waited for: both raise
    ``OSError``. ``name`` is a path as ``load`` accepts it.
    """
    *folders, last = PurePosixPath(name).parts
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            if new and not _is_there(part, at):
                os.mkdir(part, dir_fd=at)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
        if not new and not stat.S_ISREG(os.stat(last, dir_fd=at, follow_symlinks=False).st_mode):
            raise OSError(errno.EINVAL, "It is a link or a special file")
        # O_NONBLOCK: opening a pipe would wait for its writer.
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL if new else os.O_RDONLY | os.O_NONBLOCK
        handle = os.open(last, how | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=at)
    finally:
        os.close(at)
    with os.fdopen(handle, "wb" if new else "rb") as file:
        yield cast("BufferedRandom", file)  # one of its halves


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


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
    """Files that are missing, changed or added since the commit; hashes everything. A link, a pipe or a device is a
    problem wherever it lies, as an artifact holds plain files."""
    problems: list[str] = []
    for entry in artifact.manifest.files:
        try:
            with opened_below(artifact.path, entry.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != entry.size:
                    problems.append(f"{entry.path} has {size} bytes instead of {entry.size}")
                elif hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    problems.append(f"{entry.path} has another content (sha256)")
        except OSError as error:
            problems.append(f"{entry.path} cannot be read ({error.strerror})")
    expected = {entry.path for entry in artifact.manifest.files} | {MANIFEST}
    added = sorted(path.relative_to(artifact.path).as_posix() for path in _below(artifact.path))
    return problems + [f"{name} was added" for name in added if name not in expected]


def _below(folder: Path) -> Generator[Path]:
    """Everything below a folder that is not a folder itself; links, also to folders, are not followed."""
    for place, folders, names in os.walk(folder):
        yield from (Path(place) / name for name in names)
        yield from (path for name in folders if (path := Path(place) / name).is_symlink())


def hash_file(path: Path) -> str:
    """sha256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache  # a process runs one state of the code, however many artifacts it makes
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
    # Sorted and without spaces: the digest must not depend on the order in which fields were set.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
