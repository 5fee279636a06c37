"""Equal files as hard links: the last phase of a run is its model, and runs on one dataset share images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from vtcli.store import disk
from vtcli.store.manifest import Artifact, FileEntry, hash_file

SMALLEST = 4096
"""Bytes. Smaller files take a block of the disk at most, and links are no gain."""


def share(folder: Path, files: Sequence[FileEntry], others: Iterable[Artifact]) -> None:
    """Replaces each file of ``folder`` that equals an earlier one, or one of ``others``, by a link to it.

    Files of artifacts are read-only, so a link cannot be written through. A file of ``others`` is hashed first, since
    it may be damaged. Where the file system has no links, copies stay.
    """
    found = {e.sha256: other.path / e.path for other in others for e in other.manifest.files if e.size >= SMALLEST}
    changed: set[Path] = set()
    for entry in files:
        path = folder / entry.path
        source = found.setdefault(entry.sha256, path)
        if entry.size < SMALLEST or source == path:
            continue
        temp = disk.temporary(path)
        try:
            # A link to a damaged file would damage the new artifact as well.
            if folder not in source.parents and hash_file(source) != entry.sha256:
                found[entry.sha256] = path
                continue
            if source.samefile(path):  # a rename between links to one inode does nothing (POSIX), and temp would stay
                continue
            os.link(source, temp)
            temp.replace(path)
            changed.add(path.parent)
        except OSError:
            temp.unlink(missing_ok=True)
            found[entry.sha256] = path
    for parent in changed:
        disk.fsync_dir(parent)
