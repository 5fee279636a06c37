"""The guard's copy of the workspace: exact, bounded, and never led outside by what lies in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandbox_world import dig

from vtcli.sandbox.confinement.workspace import Workspace, WorkspaceLimit
from vtcli.sandbox.protocol import arena

NAMES = st.sampled_from(["a", "b", "c d", "é", "x\ny", ".hidden"])
ACTS = st.lists(
    st.tuples(st.sampled_from(["write", "append", "mkdir", "remove", "link", "rename", "chmod"]), NAMES, NAMES),
    max_size=12,
)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def state(folder: Path) -> dict[str, tuple[int, object]]:
    """Everything in the folder, to compare."""
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        held = path.readlink() if path.is_symlink() else None if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(folder))] = (stat.S_IFMT(mode), held)
    return found


def act(folder: Path, acts: list[tuple[str, str, str]]) -> None:
    for kind, one, two in acts:
        first, second = folder / one, folder / one / two
        target = second if first.is_dir() and not first.is_symlink() else first
        try:
            if kind == "write":
                target.write_text(f"{kind}{two}")
            elif kind == "append":
                with target.open("a") as file:
                    file.write(two)
            elif kind == "mkdir":
                target.mkdir()
            elif kind == "remove":
                target.rmdir() if target.is_dir() else target.unlink()
            elif kind == "link":
                target.symlink_to(two)
            elif kind == "rename":
                first.rename(folder / two)
            else:
                target.chmod(0o600)
        except OSError:
            continue


@given(before=ACTS, after=ACTS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_happened_it_is_undone(tmp_path_factory: pytest.TempPathFactory, before: list, after: list) -> None:
    folder = tmp_path_factory.mktemp("w")
    act(folder, before)
    expected = state(folder)
    workspace = Workspace(os.fsencode(folder), 1 << 20, 100)
    entries = workspace.snapshot()
    act(folder, after)
    workspace.restore(entries)
    assert state(folder) == expected


def test_a_given_file_is_not_read_again_but_is_put_back(tmp_path: Path) -> None:
    workspace = Workspace(os.fsencode(tmp_path), 1 << 20, 100)
    fd = arena.sealed(b"picture")
    workspace.give("in/a.png", fd)
    os.close(fd)
    (path,) = tmp_path.rglob("*.png")
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    for _ in range(2):
        entries = workspace.snapshot()
        assert entries[b"in/a.png"] is workspace.given[b"in/a.png"]
        path.unlink()
        path.write_text("forged")
        workspace.restore(entries)
        assert path.read_bytes() == b"picture"
    path.unlink()
    path.write_text("mine")
    path.chmod(0o444)
    assert workspace.snapshot()[b"in/a.png"].content == b"mine"


def test_links_pipes_and_foreign_files_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    workspace = Workspace(os.fsencode(inside), 1 << 20, 100)
    entries = workspace.snapshot()
    assert all(e.content != b"secret" for e in entries.values()) and len(entries) == 2
    (inside / "link").unlink()
    (inside / "new").symlink_to(outside)
    workspace.restore(entries)
    assert (outside / "secret").read_text() == "secret" and names(inside) == ["folder", "link"]
    workspace.restore({})
    assert (outside / "secret").read_text() == "secret" and names(inside) == []
    os.mkfifo(inside / "pipe")
    with pytest.raises(WorkspaceLimit):
        workspace.snapshot()
    workspace.restore({})
    assert names(inside) == []


def test_too_much_too_deep_and_closed_folders_are_removed_all_the_same(tmp_path: Path) -> None:
    workspace = Workspace(os.fsencode(tmp_path), 1 << 20, 10)
    (tmp_path / "kept").write_text("kept")
    entries = workspace.snapshot()
    dig(tmp_path, 2000)
    for n in range(200):
        (tmp_path / f"f{n}").write_text("x")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "in").mkdir()
    (tmp_path / "closed").chmod(0)
    with pytest.raises(WorkspaceLimit):
        workspace.snapshot()
    with pytest.raises(WorkspaceLimit):
        workspace.usage()
    workspace.restore(entries)
    assert names(tmp_path) == ["kept"]


def test_sparse_and_large_files_are_refused(tmp_path: Path) -> None:
    workspace = Workspace(os.fsencode(tmp_path), 1 << 20, 10)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(WorkspaceLimit):
        workspace.snapshot()
