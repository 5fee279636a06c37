"""One artifact store for all tests of stages: demonstrations, a dataset, a base model, a policy and a report.

It is made once for each state of the package, by the stages in this process, and kept between sessions in
``tests/.world/KEY``. Tests read it. A test that writes gets a home of its own with the same artifacts (``linked``).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from small_runs import DATASET, DEMOS, EVAL, RL, SFT, run

from vtcli.store import disk
from vtcli.store.artifacts import Artifact, ArtifactStore

ROOT = Path(__file__).resolve().parents[2]
WORLDS = ROOT / "tests" / ".world"
STAGES = (("synth", DEMOS), ("synth", DATASET), ("sft", SFT), ("rl", RL), ("eval", EVAL))
SOURCES = (
    "vtcli",
    "stages",
    "conf",
    "tests/support/small_runs.py",
    "tests/support/uneven.py",
    "tests/support/world.py",
)
LIBRARIES = ("torch", "transformers", "deepspeed")
KEPT = 3
"""Worlds that stay. Another session of the same checkout may still read the world of an earlier state."""

WAIT_S = 300.0
"""Limit on the wait for another process that makes the world."""


def key() -> str:
    """Digest of everything that decides the content of the world: source, configuration, libraries, threads."""
    found = hashlib.sha256()
    for path in sorted(_files()):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    versions = [importlib.metadata.version(name) for name in LIBRARIES]
    found.update(repr((versions, os.environ.get("OMP_NUM_THREADS"))).encode())
    return found.hexdigest()[:16]


def _files() -> Iterator[Path]:
    for name in SOURCES:
        place = ROOT / name
        found = [place] if place.is_file() else place.rglob("*")
        yield from (path for path in found if path.is_file() and "__pycache__" not in path.parts)


@functools.cache
def store() -> Path:
    """The world's artifact store, made first if it is missing. Several processes make it once."""
    folder = WORLDS / key()
    home, whole = folder / "artifacts", folder / "whole"
    with disk.locked(WORLDS / "lock", WAIT_S, "the world of the tests"):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # left by a session that was interrupted
            for stage, arguments in STAGES:
                run(home, stage, arguments)
            whole.touch()
        os.utime(folder)
        worlds = sorted((path for path in WORLDS.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for old in worlds[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return home


def linked(home: Path, *names: str) -> Path:
    """``home`` as a store that begins with the world's artifacts (or those called ``names``) as hard links."""
    for folder in store().iterdir():
        if not folder.name.startswith(".") and (not names or folder.name in names):
            shutil.copytree(folder, home / folder.name, copy_function=_link)
    return home


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def artifact(ref: str) -> Artifact:
    """An artifact of the world."""
    return ArtifactStore(store()).resolve(ref, verify=False)
