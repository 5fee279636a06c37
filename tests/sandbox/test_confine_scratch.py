"""Workspaces without a mount: whose template is gone is removed by the next one, whose template lives is kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from sandbox_world import dig

from vtcli.sandbox.confinement import scratch


@pytest.fixture(autouse=True)
def _parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_what_nobody_holds_is_removed_and_what_is_held_is_not() -> None:
    living, held = scratch.make()
    dead, released = scratch.make()
    Path(dead, "17").mkdir()
    Path(dead, "17", "picture.png").touch()
    os.close(released)
    another, third = scratch.make()
    assert [Path(p).is_dir() for p in (living, dead, another)] == [True, False, True]
    os.close(held)
    os.close(third)


def test_folders_that_nobody_may_enter_and_deep_ones_are_removed(tmp_path: Path) -> None:
    stale = tmp_path / f"{scratch.PREFIX}stale"
    (stale / "17" / "closed" / "in").mkdir(parents=True)
    (stale / "17" / "closed" / "file").touch()
    dig(stale / "17", 2000)
    (stale / "17" / "closed").chmod(0o300)
    scratch.sweep(tmp_path)
    assert not stale.exists()


def test_a_child_goes_on_holding_it() -> None:
    path, held = scratch.make()
    stop, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(stop, 1)
        os._exit(0)
    os.close(held)
    os.close(stop)
    scratch.sweep(Path(path).parent)
    assert Path(path).is_dir()
    os.close(go)
    os.waitpid(child, 0)
    scratch.sweep(Path(path).parent)
    assert not Path(path).exists()


def test_links_and_what_lies_behind_them_stay(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(target)
    stale = tmp_path / f"{scratch.PREFIX}stale"
    stale.mkdir()
    (stale / "link").symlink_to(target)
    scratch.sweep(tmp_path)
    assert target.is_dir()
    assert not stale.exists()
