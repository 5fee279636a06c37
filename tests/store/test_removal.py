"""Artifacts are removed with what depends on them, leftovers are cleared, and equal files are stored once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtcli.cli.artifacts import app
from vtcli.errors import InputError
from vtcli.store import disk, removal
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.manifest import file_problems, load
from vtcli.store.removal import DAY_S, clear, dependants, leftovers, remove


def make(
    store: ArtifactStore, name: str, *parents: Artifact, files: dict[str, bytes] | None = None, **more
) -> Artifact:
    with store.draft(name, "model" if parents else "dataset", parents=parents, seed=7, **more) as draft:
        for path, data in (files or {"a": name.encode()}).items():
            (draft.path / path).parent.mkdir(exist_ok=True)
            (draft.path / path).write_bytes(data)
        return draft.commit()


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """data → base → policy, and other → alone."""
    store = ArtifactStore(tmp_path / "home")
    data = make(store, "data")
    make(store, "policy", make(store, "base", data), data)
    make(store, "alone", make(store, "other"))
    return store


def refs(found) -> list[str]:
    return [artifact.ref for artifact in found]


def test_what_others_were_made_from_goes_only_with_them(store: ArtifactStore) -> None:
    assert refs(dependants(store, [store.resolve("data@latest")])) == ["base:v1", "policy:v1"]
    with pytest.raises(InputError, match=r"base:v1, policy:v1 were made from data:v1.*--with-dependants"):
        remove(store, ["data@latest"], with_dependants=False)
    assert refs(remove(store, ["data:v1"], with_dependants=True, dry_run=True)) == ["data:v1", "base:v1", "policy:v1"]
    assert len(store.ls()) == 5
    assert refs(remove(store, ["policy:v1"], with_dependants=False)) == ["policy:v1"]
    remove(store, ["data:v1"], with_dependants=True)
    assert refs(store.ls()) == ["alone:v1", "other:v1"] and not store.damaged()
    with pytest.raises(InputError, match="There is no artifact data:v1"):
        remove(store, ["data:v1"], with_dependants=False)


@pytest.mark.parametrize("chosen", [["data:v1"], ["data:v1", "policy:v1"]])
def test_children_go_before_their_parents(
    chosen: list[str], store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name the report, of data and policy, would go after the policy."""
    make(store, "a-report", store.resolve("policy:v1"), store.resolve("data:v1"))
    gone = list[str]()
    monkeypatch.setattr(removal, "_remove", lambda store, artifact: gone.append(artifact.ref))
    remove(store, chosen, with_dependants=True)
    assert gone == ["a-report:v1", "policy:v1", "base:v1", "data:v1"]


def test_the_number_of_a_removed_version_does_not_come_back(store: ArtifactStore) -> None:
    make(store, "alone", store.resolve("other:v1"))
    remove(store, ["alone:v2"], with_dependants=False)
    assert make(store, "alone", store.resolve("other:v1")).version == 3
    remove(store, ["alone:v1"], with_dependants=False)
    assert refs(store.ls()).count("alone:v3") == 1


def test_what_killed_processes_left_is_cleared_and_what_is_held_stays(store: ArtifactStore) -> None:
    code = (
        "import os, sys; from pathlib import Path; from vtcli.store import disk\n"
        "from vtcli.store.artifacts import ArtifactStore\n"
        "home = Path(sys.argv[1])\n"
        "with ArtifactStore(home).draft('data', 'dataset') as draft, disk.locked(home / '.work/rl-1.lock', 0, 'x'):\n"
        "    (draft.path / 'a').write_text('x' * 100); (home / '.work/rl-1').mkdir(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(store.root)], check=False)
    (store.root / ".work" / "sft-2").mkdir()
    with disk.locked(store.root / ".work" / "sft-2.lock", 0, "sft"):
        found = leftovers(store)
        assert sorted(leftover.kind for leftover in found) == ["draft", "lock", "lock"]
        assert next(leftover.size for leftover in found if leftover.kind == "draft") == 100
        clear(found)
        assert leftovers(store) == [] and (store.root / ".work" / "rl-1").exists()
        clear(leftovers(store, work=True))
        assert [path.name for path in sorted((store.root / ".work").iterdir())] == ["sft-2", "sft-2.lock"]
    assert not list(store.root.rglob("*.lock"))  # a lock that is given back goes
    assert len(store.ls()) == 5


def test_equal_files_are_stored_once(store: ArtifactStore) -> None:
    weights, picture = b"w" * 9000, b"p" * 5000
    parts = {"model": weights, "phases/last": weights, "images/a": picture, "small": b"s", "images/s": b"s"}
    first = make(store, "policy", files=parts)
    inode = (first.path / "model").stat().st_ino
    assert (first.path / "phases/last").stat().st_ino == inode
    assert (first.path / "small").stat().st_ino != (first.path / "images/s").stat().st_ino
    second = make(store, "policy", files=parts | {"model": b"v" * 9000})
    assert (second.path / "images/a").stat().st_ino == (first.path / "images/a").stat().st_ino
    assert not file_problems(load(first.path)) + file_problems(load(second.path))
    assert first.size == 9000 + 5000 + 1
    remove(store, [first.ref], with_dependants=False)
    assert (second.path / "phases/last").read_bytes() == weights and not file_problems(second)
    with store.draft("policy", "model", seed=0, stage="rl") as draft:
        (draft.path / "model").write_bytes(b"l" * 9000)
        (draft.path / "last").hardlink_to(draft.path / "model")
        third = draft.commit()
    assert sorted(path.name for path in third.path.iterdir()) == ["last", "manifest.json", "model"]


def test_a_damaged_file_is_not_shared(store: ArtifactStore) -> None:
    first = make(store, "policy", files={"a": b"p" * 5000})
    (first.path / "a").chmod(0o644)
    (first.path / "a").write_bytes(b"q" * 5000)
    assert not file_problems(make(store, "policy", files={"a": b"p" * 5000}))


def test_the_list_tells_members_of_a_sweep_apart_and_long_lists_are_short(store: ArtifactStore) -> None:
    files = {f"images/{n}": b"x" * n for n in range(30)} | {"model": b"w"}
    made = make(store, "policy", files=files, overrides=("stage=rl", "+recipe=codev", "+variant=codev_code"))
    assert made.recipe == "codev/code" and store.resolve("data:v1").recipe == ""
    home = ["--home", str(store.root)]
    (line,) = [text for text in CliRunner().invoke(app, ["ls", *home]).stdout.splitlines() if "policy:v2" in text]
    assert line.split("\t")[3:5] == ["7", "codev/code"]  # seed and recipe
    short = CliRunner().invoke(app, ["show", "policy:v2", *home]).stdout
    assert '"images": "30 files, 0.0 MB"' in short and "images/29" not in short and '"path": "model"' in short
    assert "images/29" in CliRunner().invoke(app, ["show", "policy:v2", "--all", *home]).stdout
    assert "removed policy:v2" in CliRunner().invoke(app, ["rm", "policy:v2", *home]).stdout
    assert CliRunner().invoke(app, ["gc", "--dry-run", *home]).exit_code == 0


def test_a_plain_gc_names_the_work_that_it_leaves(store: ArtifactStore) -> None:
    (store.root / ".work" / "rl-1").mkdir(parents=True)
    (store.root / ".work" / "rl-1" / "state").write_bytes(b"x" * 300_000)
    command = ["gc", "--home", str(store.root)]
    plain = CliRunner().invoke(app, command)
    assert "takes 0.3 MB (folders: 1)" in plain.stderr and "--work removes" in plain.stderr and not plain.stdout
    whole = CliRunner().invoke(app, [*command, "--work"])
    assert "rl-1" in whole.stdout and "unfinished" not in whole.stderr and not (store.root / ".work" / "rl-1").exists()


def test_caches_go_once_they_are_unused_for_so_long(store: ArtifactStore) -> None:
    for days, name in ((40, ".rollouts/old"), (40, ".merged/old"), (0, ".rollouts/new"), (0, ".merged/new")):
        folder = store.root / name
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 1000)
        os.utime(folder, (time.time() - days * DAY_S, time.time() - days * DAY_S))
    command = ["gc", "--home", str(store.root)]
    plain = CliRunner().invoke(app, command)
    assert "folders: 4" in plain.stderr and "--unused DAYS" in plain.stderr and not plain.stdout
    found = CliRunner().invoke(app, [*command, "--unused", "30"])
    assert found.stdout.count("removed") == 2 and "folders: 2" in found.stderr
    assert sorted(str(p.relative_to(store.root)) for p in store.root.glob(".*/*/")) == [".merged/new", ".rollouts/new"]
