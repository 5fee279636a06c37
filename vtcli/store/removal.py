"""Removing artifacts with what depends on them, and what killed processes have left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from vtcli.errors import InputError
from vtcli.store import disk
from vtcli.store.adapters import MERGED
from vtcli.store.artifacts import NEWEST_REMOVED, Artifact, ArtifactStore


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something in the store that no artifact needs. ``size`` is in bytes."""

    path: Path
    size: int
    kind: str  # "draft", "work", "lock" or "cache"


def dependants(store: ArtifactStore, chosen: Sequence[Artifact]) -> list[Artifact]:
    """Artifacts that were made from ``chosen``, or from what was made from them; by name and version."""
    found = {artifact.ref: artifact for artifact in chosen}
    everything = store.ls()
    # By rounds, because manifests name parents and not children.
    grown = True
    while grown:
        known = {(artifact.ref, artifact.digest) for artifact in found.values()}
        more = [a for a in everything if known & {(p.ref, p.digest) for p in a.manifest.parents} and a.ref not in found]
        found |= {artifact.ref: artifact for artifact in more}
        grown = bool(more)
    return [a for a in everything if a.ref in found and a.ref not in {c.ref for c in chosen}]


def remove(store: ArtifactStore, refs: Sequence[str], with_dependants: bool, dry_run: bool = False) -> list[Artifact]:
    """Removes artifacts and returns them. Their numbers are not used again. What was made from others goes before them,
    so that a killed process leaves no artifact without its parents.

    Raises ``InputError`` for an unknown artifact, and where others were made from them unless ``with_dependants``.
    """
    chosen = list({a.ref: a for a in (store.resolve(ref, verify=False) for ref in refs)}.values())
    if outside := [a.ref for a in chosen if a.path.resolve().parent.parent != store.root.resolve()]:
        raise InputError(
            f"{', '.join(outside)} is not in {store.root}: set VTCLI_HOME or --home to the store that holds it."
        )
    others = dependants(store, chosen)
    if others and not with_dependants:
        raise InputError(
            f"{', '.join(a.ref for a in others)} {'was' if len(others) == 1 else 'were'} made from "
            f"{', '.join(a.ref for a in chosen)}, and would lose {'its' if len(others) == 1 else 'their'} lineage. "
            "--with-dependants removes them as well; nothing was removed."
        )
    found = {(a.ref, a.digest): a for a in (*chosen, *others)}
    parents = {key: [up for p in a.manifest.parents if (up := (p.ref, p.digest)) in found] for key, a in found.items()}
    try:
        order = [*TopologicalSorter(parents).static_order()]
    except CycleError:  # forged manifests that name each other
        order = list(found)
    for key in [] if dry_run else reversed(order):
        _remove(store, found[key])
    return list(found.values())


def _remove(store: ArtifactStore, artifact: Artifact) -> None:
    """First out of sight by one rename, so that a killed process leaves no half artifact."""
    folder = store.root / artifact.name
    with store.lock(artifact.name), disk.checked(artifact.path, "remove"):
        # Before the rename: if the number were lost, a new artifact could take it and pass for the old one.
        disk.write_atomic(folder / NEWEST_REMOVED, f"{store.newest_version(artifact.name)}\n".encode())
        # Named as a draft, so that a kill before ``rmtree`` leaves something that the next writer clears.
        gone = folder / f".draft-{secrets.token_hex(6)}"
        artifact.path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def leftovers(store: ArtifactStore, work: bool = False) -> list[Leftover]:
    """Drafts of killed processes and abandoned locks; with ``work`` also the folders that interrupted runs would
    continue from."""
    found: list[Leftover] = []
    if not store.root.is_dir():
        return found
    with disk.checked(store.root, "list"):
        for lock in sorted(
            [*store.root.glob("*/.*lock"), *store.root.glob(".work/*.lock"), *store.root.glob(".*.lock")]
        ):
            if disk.is_free(lock):
                found.append(Leftover(lock, lock.stat().st_size, "lock"))
        for draft in sorted(store.root.glob("*/.draft-*")):
            if draft.is_dir() and disk.is_free(draft.with_name(f"{draft.name}.lock")):
                found.append(Leftover(draft, _size(draft), "draft"))
        if (rates := store.root / ".facts" / "pass_rate").is_dir():  # of 0.1.0's first months; nothing reads it now
            found.append(Leftover(rates, _size(rates), "cache"))
        for folder in sorted(store.root.glob(".work/*")) if work else ():
            if folder.is_dir() and disk.is_free(folder.with_suffix(".lock")):
                found.append(Leftover(folder, _size(folder), "work"))
    return found


ROLLOUTS = ".rollouts"
"""Folder below the home of artifacts with the rollouts of each agent, see ``session.memory``."""

MOST_ROLLOUTS = 50 * 2**30
"""Bytes that these may take before the rollouts of the agents unused for longest go."""

DAY_S = 86_400.0


def caches(root: Path, unused_s: float = 0.0, kinds: Sequence[str] = (ROLLOUTS, MERGED)) -> list[Leftover]:
    """Returns the rollouts of each agent and each merged adapter that no run has used for ``unused_s``; the one unused
    for longest first."""
    found: list[tuple[float, Leftover]] = []
    for folder in (folder for kind in kinds for folder in (root / kind).glob("*/")):
        with suppress(FileNotFoundError):  # another process has just made room
            used = folder.stat().st_mtime
            if time.time() - used >= unused_s:
                found.append((used, Leftover(folder, _size(folder), "cache")))
    return [leftover for _, leftover in sorted(found, key=lambda pair: pair[0])]


def bound_rollouts(root: Path, most: int = MOST_ROLLOUTS) -> None:
    """Removes the rollouts of agents, the one unused for longest first, until the rest takes ``most`` bytes. An agent
    that was asked within a day stays, because a run may be asking it now."""
    shelves = caches(root, kinds=(ROLLOUTS,))
    left = sum(shelf.size for shelf in shelves)
    for shelf in shelves:
        with suppress(FileNotFoundError):
            if left > most and time.time() - shelf.path.stat().st_mtime >= DAY_S:
                clear([shelf])
                left -= shelf.size


def clear(found: Sequence[Leftover]) -> None:
    """Removes leftovers, except those taken or removed by another process meanwhile."""
    for leftover in found:
        path = leftover.path
        # No lock: whoever misses a rollout or a merged adapter makes it again.
        if leftover.kind == "cache":
            shutil.rmtree(path, ignore_errors=True)
            continue
        lock = {"lock": path, "work": path.with_suffix(".lock"), "draft": path.with_name(f"{path.name}.lock")}
        with suppress(InputError), disk.locked(lock[leftover.kind], 0, "what is removed"):  # goes with the lock
            if leftover.kind != "lock":
                shutil.rmtree(path, ignore_errors=True)


def _size(folder: Path) -> int:
    """Returns the bytes of all files. A file that another process removes meanwhile does not count."""
    found = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found += Path(parent, name).lstat().st_size
    return found
