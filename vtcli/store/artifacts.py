"""Versioned artifacts: immutable folders with a manifest, complete or absent, verified when read.

``root/NAME/vN/`` holds an artifact's files and ``manifest.json``. ``root/NAME/.draft-*`` are unfinished ones: readers
ignore them, and the next writer removes them. A commit hashes and syncs every file, writes the manifest, and renames
the folder into place under a lock. So a process killed at any moment leaves a whole version or none.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vtcli import __version__
from vtcli.errors import InputError
from vtcli.foreign import one_line
from vtcli.schema import SCHEMA_VERSION
from vtcli.store import codec, disk
from vtcli.store.manifest import (
    MANIFEST,
    NAME,
    VERSION,
    Artifact,
    FileEntry,
    Kind,
    Manifest,
    Parent,
    content_digest,
    file_problems,
    git_commit,
    load,
    opened_below,
    seal,
    write,
)
from vtcli.store.sharing import share

MAKERS: Mapping[str, str] = {
    "dataset": "vtcli synth name={name}",
    "demos": "vtcli synth name={name}",
    "model": "vtcli sft name={name}` or `vtcli rl name={name}",
    "trajectories": "vtcli eval name={name}",
    "report": "vtcli eval name={name}",
    "scores": "vtcli judge TRAJECTORIES +recipe=RECIPE name={name}",
    "facts": "vtcli filter filter.shard=1/N name={name}",
    "comparison": "vtcli judge TRAJECTORIES --all-recipes name={name}",
}
"""The command that makes an artifact of each kind, for the message about a missing one."""

COMMIT_WAIT_S = 60.0
"""Limit on the time for which a commit waits for another's lock; a commit holds the lock for one rename only."""

NEWEST_REMOVED = ".removed"
"""File in a name's folder with the highest removed version, so that its number does not come back."""

_ROWS = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".gz", ".arrow", ".tar")
LONGEST_REF = 4096
"""Characters of a reference; Linux opens no longer path."""

MAX_GENERATIONS = 100
"""Artifacts from one to its oldest ancestor that a lineage follows."""

__all__ = ["Artifact", "ArtifactStore", "Draft", "FileEntry", "Kind", "Lineage", "Manifest", "Parent", "load"]

_NAME = re.compile(NAME)
_VERSION = re.compile(VERSION)


@dataclass(frozen=True, slots=True)
class Lineage:
    """An artifact with everything it was made from, down to the generator's seed. ``problem``: why a branch ends
    early: the parent is gone, damaged, or another one by now."""

    ref: str
    kind: str
    digest: str
    stage: str = ""
    seed: int | None = None
    git_commit: str | None = None
    created: str = ""
    run_id: str | None = None
    parents: tuple[Lineage, ...] = ()
    problem: str | None = None
    path: Path | None = None  # None where ``problem`` is set
    version_of_vtcli: str = ""

    def text(self, first: str = "", rest: str = "") -> str:
        """The tree, one artifact a line. ``first`` stands before the first line and ``rest`` before all others. What
        an artifact was made from is listed where it comes up first."""
        return "\n".join(self._lines(first, rest, set()))

    def _lines(self, first: str, rest: str, listed: set[tuple[str, str]]) -> Generator[str]:
        facts = [self.kind, f"by {self.stage}" if self.stage else "", "" if self.seed is None else f"seed {self.seed}"]
        version = f"vtcli {self.version_of_vtcli}" if self.version_of_vtcli else ""
        facts += [f"commit {self.git_commit[:12]}" if self.git_commit else version, f"digest {self.digest[:12]}"]
        shown = one_line(", ".join(f for f in facts if f))
        trouble = f"  ! {one_line(self.problem)}" if self.problem else ""
        again = bool(self.parents) and (self.ref, self.digest) in listed
        listed.add((self.ref, self.digest))
        yield f"{first}{self.ref}  {shown}{', as above' if again else ''}{trouble}"
        for n, parent in enumerate(() if again else self.parents, 1):
            last = n == len(self.parents)
            yield from parent._lines(f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}", listed)


@dataclass(frozen=True, slots=True)
class Draft:
    """An artifact in the making: write files under ``path``, then ``commit`` once."""

    store: ArtifactStore
    name: str
    path: Path
    kind: Kind
    parents: tuple[Artifact, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int | None = None
    fingerprint: str = ""
    stage: str = ""
    run_id: str | None = None
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overrides: tuple[str, ...] = ()
    git_commit: str | None = None  # of the code that made it; None: this code
    created: str = ""  # "": now
    version_of_vtcli: str = __version__

    def commit(self, summary: Mapping[str, Any] | None = None) -> Artifact:
        """Makes the folder the next version of ``name``: hashed, synced, read-only, renamed into place.

        Raises ``InputError`` for disk trouble, an empty folder, or links in it; then no version appears.
        """
        with disk.checked(self.path, "finish the artifact in"):
            (self.path / MANIFEST).unlink(missing_ok=True)  # of an earlier attempt that was killed before its rename
            files = seal(self.path)  # outside the lock: hashing a model takes minutes, a rename none
            share(self.path, files, self.store.newest(self.name))
            parents = tuple(Parent(p.ref, p.kind, p.digest, p.manifest.run_id) for p in self.parents)
            with self.store.lock(self.name):
                # the number is chosen under the lock, so two writers of one name get two versions
                version = self.store.newest_version(self.name) + 1
                manifest = Manifest(
                    schema_version=SCHEMA_VERSION,
                    name=self.name,
                    version=version,
                    kind=self.kind,
                    digest=content_digest(self.kind, files),
                    files=files,
                    parents=parents,
                    config=self.config,
                    seed=self.seed,
                    fingerprint=self.fingerprint,
                    git_commit=self.git_commit or git_commit(),
                    created=self.created or datetime.now(UTC).isoformat(timespec="seconds"),
                    stage=self.stage,
                    run_id=self.run_id,
                    summary=self.summary if summary is None else summary,
                    identity=self.identity,
                    overrides=self.overrides,
                    version_of_vtcli=self.version_of_vtcli,
                )
                write(self.path, manifest)
                target = self.store.root / self.name / f"v{version}"
                self.path.rename(target)  # from here on readers see the version, whole
                disk.fsync_dir(target.parent)  # the new name survives a power cut as well
        _make_read_only(target)  # last: a kill before it leaves a whole version that is merely writable
        return Artifact(self.name, version, target, manifest)


class ArtifactStore:
    """All artifacts under one folder (``home/artifacts`` by default)."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def resolve(self, ref: str, kind: Kind | None = None, verify: bool = True) -> Artifact:
        """The artifact that ``NAME:vN``, ``NAME@latest`` or a folder's path means.

        Raises ``InputError`` when it does not exist (the message has the command which makes it), is of another kind,
        or is damaged. ``verify=False`` skips hashing the files, for example in all ranks but the first.
        """
        artifact = load(self._folder(ref, kind))
        if kind is not None and artifact.kind != kind:
            raise InputError(
                f"{ref} is an artifact of kind {artifact.kind}; expected one of kind {kind}. "
                f"`vtcli artifacts ls` shows the kinds; `{_maker(kind, artifact.name)}` makes one."
            )
        if verify and (problems := file_problems(artifact)):
            shown = "; ".join(problems[:5])
            raise InputError(
                f"The artifact {ref} in {artifact.path} is damaged: {shown}. Put a copy of it back, or remove it "
                f"(`vtcli artifacts rm {artifact.ref}`) and make it again, as another version."
            )
        return artifact

    def ls(self, name: str | None = None) -> list[Artifact]:
        """Every readable artifact (of ``name`` alone), by name and version. Unreadable ones are in ``damaged``."""
        return self._scan(name)[0]

    def damaged(self) -> list[str]:
        """One line for every version whose manifest cannot be read."""
        return self._scan()[1]

    def show(self, ref: str) -> dict[str, Any]:
        """The manifest of ``ref`` as plain values, with ``ref``, ``path`` and ``size`` (bytes) in front."""
        artifact = self.resolve(ref, verify=False)
        head = {"ref": artifact.ref, "path": str(artifact.path), "size": artifact.size}
        return head | codec.encode(artifact.manifest)

    def verify(self, ref: str) -> list[str]:
        """Lists the defects of ``ref`` and its ancestors, one line each: changed, missing or added files, and
        missing or replaced ancestors. Images that rows name by path count as files."""
        artifact = self.resolve(ref, verify=False)
        ancestors = {str(node.path or node.ref): node for node in _nodes(self._lineage(artifact).parents)}
        below = [f"{node.ref}, an ancestor: {line}" for node in ancestors.values() for line in _node_problems(node)]
        return _all_problems(artifact) + below

    def lineage(self, ref: str) -> Lineage:
        """The tree from ``ref`` down to artifacts without parents, which name their generator's seed."""
        return self._lineage(self.resolve(ref, verify=False))

    def find(self, fingerprint: str) -> Artifact | None:
        """The newest undamaged artifact that was made for exactly this fingerprint."""
        found = [a for a in self.ls() if fingerprint and a.manifest.fingerprint == fingerprint]
        found.sort(key=lambda a: (a.manifest.created, a.version), reverse=True)
        # a damaged one is made again, not returned: its fingerprint holds, its files do not
        return next((a for a in found if not file_problems(a)), None)

    def add(self, folder: Path) -> Artifact:
        """The artifact in a folder of another store, as the next version of its name here. One of the same name and
        content is not added again.

        What it was made from stays where it was: ``summary["added"]`` tells it, and the lineage ends here.

        Raises:
            InputError: no artifact, or a damaged one.
        """
        source = self.resolve(str(folder))
        made = source.manifest
        for known in self.ls():
            if (known.name, known.digest) == (source.name, source.digest):
                return known
        # The parents stay behind, so the copy says whose child it was instead of naming refs of another store.
        added = {"ref": source.ref, "parents": codec.encode(made.parents)}
        kept = ("config", "seed", "fingerprint", "stage", "identity", "overrides", "git_commit", "created")
        kept += ("version_of_vtcli",)
        details = {name: getattr(made, name) for name in kept}
        with self.draft(made.name, made.kind, summary={**made.summary, "added": added}, **details) as draft:
            with disk.checked(draft.path, "copy the artifact to"):
                # names come from a foreign manifest: opened_below follows no link out of either folder
                for entry in made.files:
                    with (
                        opened_below(source.path, entry.path) as old,
                        opened_below(draft.path, entry.path, new=True) as n,
                    ):
                        shutil.copyfileobj(old, n)
            return draft.commit()

    @contextmanager
    def draft(self, name: str, kind: Kind, **details: Any) -> Generator[Draft]:
        """An empty folder on the store's own file system, removed again unless it is committed.

        ``details`` are the other fields of ``Draft``: parents, config, seed, fingerprint, stage, run_id, summary.
        Drafts that killed processes left under this name are removed first.
        """
        folder = self.root / require_name(name)
        path = folder / f".draft-{secrets.token_hex(6)}"
        held = _draft_lock(path)
        with ExitStack() as stack:
            with self.lock(name):
                _clear_stale_drafts(folder)
                # held while the draft is written: it tells this draft from those that killed writers left
                stack.enter_context(disk.locked(held, 0, "a draft"))
            try:
                with disk.checked(path, "make the folder"):
                    path.mkdir()
                yield Draft(self, name, path, kind, **details)
            finally:
                shutil.rmtree(path, ignore_errors=True)
                held.unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """True if a version of the name is there. Its folder outlives them all."""
        return bool(_versions(self.root / name))

    def newest(self, name: str) -> list[Artifact]:
        """The newest readable version of a name, in a list that may be empty."""
        try:
            return [load(self.root / name / f"v{max(_versions(self.root / name))}")]
        except (InputError, ValueError):  # damaged, or none
            return []

    def newest_version(self, name: str) -> int:
        """Returns the newest version number, 0 without a version. Damaged and removed versions count, so that a
        number is never used twice."""
        memory = self.root / name / NEWEST_REMOVED
        with disk.checked(memory, "read"):
            removed = int(memory.read_text()) if memory.exists() else 0
        return max(_versions(self.root / name) | {removed})

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Held while a version is put in place or drafts are cleared."""
        return disk.locked(self.root / name / ".lock", COMMIT_WAIT_S, f"commits to the artifact {name}")

    def _scan(self, name: str | None = None) -> tuple[list[Artifact], list[str]]:
        good: list[Artifact] = []
        bad: list[str] = []
        if not self.root.exists():
            return good, bad
        with disk.checked(self.root, "list"):
            every = self.root.iterdir() if name is None else [self.root / name]
            folders = sorted(f for f in every if f.is_dir() and _NAME.fullmatch(f.name))
            for path in (f / f"v{version}" for f in folders for version in sorted(_versions(f))):
                try:
                    good.append(load(path))
                except InputError as error:  # one damaged manifest does not hide all other artifacts
                    bad.append(str(error))
        return good, bad

    def _folder(self, ref: str, kind: Kind | None) -> Path:
        # A reference is tried before a path, so a folder that happens to be called NAME:v1 cannot shadow an artifact.
        match = re.fullmatch(rf"({_NAME.pattern})(?::{_VERSION.pattern}|@latest)", ref)
        if match is None:
            if len(ref) <= LONGEST_REF and os.path.lexists(Path(ref) / MANIFEST):
                return Path(ref)
            named = _NAME.fullmatch(ref) and _versions(self.root / ref)
            meant = f"Did you mean {ref}@latest? " if named else ""
            if ref.lower().endswith(_ROWS):
                meant = "A file of rows becomes one by `vtcli synth`: docs/data.md. "
            raise InputError(
                f"{_short(ref)!r} is not an artifact: it is neither NAME:vN, NAME@latest, nor a folder with a "
                f"{MANIFEST}. {meant}`vtcli artifacts ls` lists what there is under {self.root}."
            )
        name, version = match.group(1), match.group(2)
        have = sorted(_versions(self.root / name))
        if not have or (version and int(version) not in have):
            there = f"it has {', '.join(f'v{v}' for v in have)}" if have else f"nothing of that name in {self.root}"
            advice = f"Make it with `{_maker(kind, name)}`." if kind else "`vtcli artifacts ls` lists what there is."
            raise InputError(f"There is no artifact {ref} ({there}). {advice}")
        return self.root / name / f"v{version or have[-1]}"

    def _lineage(self, artifact: Artifact) -> Lineage:
        """The tree of an artifact. Equal branches are one object, so that diamonds cost no more than their artifacts;
        a circle, which only a forged manifest makes, and more than ``MAX_GENERATIONS`` end a branch as a problem."""
        made: dict[Path, Lineage] = {}

        def tree(child: Artifact, descendants: tuple[Path, ...]) -> Lineage:
            if child.path not in made:
                m, below = child.manifest, (*descendants, child.path)
                parents = tuple(parent_tree(parent, child, below) for parent in m.parents)
                facts = (child.ref, m.kind, m.digest, m.stage, m.seed, m.git_commit, m.created, m.run_id)
                made[child.path] = Lineage(*facts, parents, path=child.path)
            return made[child.path]

        def parent_tree(parent: Parent, child: Artifact, below: tuple[Path, ...]) -> Lineage:
            sibling = child.path.parent.parent / parent.ref.replace(":", "/")  # the store that the child lies in
            try:
                # First where the child lies: an artifact that is read from another store has its parents there.
                found = load(sibling) if sibling.is_dir() else self.resolve(parent.ref, verify=False)
                if found.digest != parent.digest:
                    raise InputError(
                        f"{parent.ref} is not the artifact that was used: its digest is {found.digest[:12]}"
                    )
                if found.path in below:
                    raise InputError(f"{parent.ref} is made from itself: its manifest is forged")
                if len(below) > MAX_GENERATIONS:
                    raise InputError(f"{parent.ref} and what it was made from: more than {MAX_GENERATIONS} generations")
            except InputError as error:
                return Lineage(parent.ref, parent.kind, parent.digest, run_id=parent.run_id, problem=str(error))
            return tree(found, below)

        return tree(artifact, ())


def require_name(name: str) -> str:
    """The name itself; ``InputError`` when it cannot be one."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{_short(name)!r} cannot name an artifact: use letters, digits, dots, dashes and underscores, at most "
            "200, a letter or a digit first. name=… sets it."
        )
    return name


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:60]}… of {len(text)} characters"


def _maker(kind: Kind, name: str) -> str:
    return MAKERS[kind].format(name=name)


def _versions(folder: Path) -> set[int]:
    if not folder.is_dir():
        return set()
    with disk.checked(folder, "list"):
        return {int(match.group(1)) for path in folder.iterdir() if (match := _VERSION.fullmatch(path.name))}


def _draft_lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _clear_stale_drafts(folder: Path) -> None:
    """Removes what killed writers left; the caller holds the name's lock, so no draft is just being made."""
    for path in folder.glob(".draft-*"):
        draft = path.with_suffix("") if path.suffix == ".lock" else path
        if disk.is_free(_draft_lock(draft)):
            shutil.rmtree(draft, ignore_errors=True)
            _draft_lock(draft).unlink(missing_ok=True)


def _make_read_only(folder: Path) -> None:
    """Files only, so that ``rm -r`` still works on the folder."""
    with disk.checked(folder, "make read-only"):
        for path in folder.rglob("*"):
            if path.is_file():
                path.chmod(0o444)


def _nodes(trees: Sequence[Lineage]) -> Generator[Lineage]:
    """Every artifact of the trees once; equal branches are one object (``ArtifactStore._lineage``)."""
    left, known = list(trees), set[int]()
    while left:
        node = left.pop(0)
        if id(node) not in known:
            known.add(id(node))
            yield node
            left = [*node.parents, *left]


def _node_problems(node: Lineage) -> list[str]:
    return [node.problem or "gone"] if node.path is None else _all_problems(load(node.path))


def _all_problems(artifact: Artifact) -> list[str]:
    """Defects of an artifact's files; without any, of the images that its rows name."""
    from vtcli.store import encoded  # pyarrow and Pillow, which other commands do not need

    rows = artifact.kind in ("dataset", "demos")
    return file_problems(artifact) or (encoded.changes(artifact.path) if rows else [])
