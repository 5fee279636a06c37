"""`vtcli artifacts add`: an artifact of another home comes with its origin, once, and whole or not at all."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtcli.cli.artifacts import app
from vtcli.errors import InputError
from vtcli.store import manifest, removal
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.manifest import FileEntry, Manifest, Parent, content_digest


@pytest.fixture
def base(tmp_path: Path) -> Artifact:
    """A model with one parent, in a home of its own."""
    store = ArtifactStore(tmp_path / "theirs")
    with store.draft("demos", "demos", seed=3) as draft:
        (draft.path / "rows").write_text("r")
        demos = draft.commit()
    details = {"seed": 3, "stage": "sft", "config": {"scale": "tiny"}, "overrides": ("+recipe=tiny_base",)}
    with store.draft("base", "model", parents=(demos,), summary={"loss": 1.5}, **details) as draft:
        (draft.path / "deep").mkdir()
        (draft.path / "deep" / "weights").write_text("w")
        return draft.commit()


def test_an_artifact_of_another_home_keeps_its_content_and_its_origin(tmp_path: Path, base: Artifact) -> None:
    store = ArtifactStore(tmp_path / "ours")
    with store.draft("demos", "demos") as draft:  # another one, of the parent's name
        (draft.path / "rows").write_text("other")
        draft.commit()
    added = store.add(base.path)
    assert added.ref == "base:v1" and added.digest == base.digest
    ours, theirs = added.manifest, base.manifest
    for name in ("seed", "stage", "config", "overrides", "git_commit", "created", "fingerprint"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.summary["loss"] == 1.5
    assert ours.summary["added"]["parents"][0]["digest"] == theirs.parents[0].digest
    assert store.verify("base:v1") == []  # the demos of this home are not taken for its parent
    assert store.add(base.path).ref == "base:v1"  # once


def test_a_damaged_artifact_is_not_added(tmp_path: Path, base: Artifact) -> None:
    weights = base.path / "deep" / "weights"
    weights.chmod(0o644)
    weights.write_text("x")
    store = ArtifactStore(tmp_path / "ours")
    with pytest.raises(InputError, match=r"is damaged: deep/weights has another content"):
        store.add(base.path)
    with pytest.raises(InputError, match="is not an artifact"):
        store.add(tmp_path)
    assert store.ls() == []


def test_the_command_prints_what_a_stage_prints(tmp_path: Path, base: Artifact) -> None:
    result = CliRunner().invoke(app, ["add", str(base.path), "--home", str(tmp_path / "ours")])
    assert result.stdout == f"base:v1\t{tmp_path / 'ours' / 'base' / 'v1'}\n"


def forged(folder: Path, held: dict[str, bytes] | None = None, **fields: object) -> Path:
    """An artifact's folder as anybody can write one: its manifest has a right checksum, and names what it likes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (held or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    entries = tuple(FileEntry(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in (held or {}).items())
    values = {"schema_version": 1, "name": "evil", "version": 1, "kind": "model", "files": entries, "parents": ()}
    values |= {"config": {}, "seed": None, "fingerprint": "", "git_commit": None, "created": "", **fields}
    values |= {"digest": content_digest("model", values["files"])}
    manifest.write(folder, Manifest(**values))
    return folder


def test_a_manifest_from_outside_names_nothing_beyond_its_folder(tmp_path: Path) -> None:
    """Each of them came in, or ended in a traceback; the first wrote `pwned` beside the store."""
    data, deep = b"weights", tmp_path / "a" / "b" / "c"
    entry = FileEntry("w", len(data), hashlib.sha256(data).hexdigest())
    paths = (
        "../../../pwned",
        str(tmp_path / "absolute"),
        "a/../w",
        "./w",
        "a//w",
        "a\\w",
        "w\0",
        "",
        ".",
        "manifest.json",
        "w.vtcli-tmp",
    )
    cases = {f"path {path!r}": {"files": {path: data}} for path in paths}
    cases["path twice"] = {"files": (entry, entry)}
    cases["a file that is a folder"] = {"files": (entry, replace(entry, path="w/x"))}
    cases["name"] = {"name": "../evil"}
    cases["version"] = {"version": 10**30}
    for ref in ("../charts:v1", str(tmp_path), "charts", "charts:v" + "9" * 5000):
        cases[f"parent {ref[:20]}"] = {"parents": (Parent(ref, "dataset", "0"),)}
    failures: list[str] = []
    for number, (case, fields) in enumerate(cases.items()):
        folder = forged(deep / str(number), {"w": data})
        if isinstance(named := fields.get("files"), dict):
            (folder / "w").unlink()
            (folder / "a").mkdir()
            for path in named:
                if not {"\0", "\\"} & set(path) and not (folder / path).exists():
                    (folder / path).write_bytes(data)
            fields = {"files": tuple(replace(entry, path=path) for path in named)}
        forged(folder, **{"files": (entry,), **fields})
        try:
            failures.append(f"{case}: added {ArtifactStore(tmp_path / 'ours').add(folder).ref}")
        except InputError as error:
            failures += [] if "is corrupt" in str(error) else [f"{case}: {error}"]
        except Exception as error:
            failures.append(f"{case}: {error!r}")
    assert not failures, "\n".join(failures)
    assert not (tmp_path / "ours").exists()


def test_what_is_no_plain_file_is_not_added(tmp_path: Path) -> None:
    data, failures = b"secret", list[str]()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "w").write_bytes(data)
    for kind in ("link", "folder link", "pipe", "added link", "added folder link", "manifest link", "manifest pipe"):
        folder = forged(tmp_path / kind, {"in/w": data})
        if "manifest" in kind:
            (folder / "manifest.json").rename(tmp_path / f"{kind}.json")
        elif "added" not in kind:
            (folder / "in" / "w").unlink()
            (folder / "in").rmdir() if kind == "folder link" else None
        match kind:
            case "link":
                (folder / "in" / "w").symlink_to(tmp_path / "outside" / "w")
            case "folder link":
                (folder / "in").symlink_to(tmp_path / "outside")
            case "pipe":
                os.mkfifo(folder / "in" / "w")
            case "added link" | "added folder link":
                (folder / "more").symlink_to(tmp_path / "outside" / ("" if "folder" in kind else "w"))
            case "manifest link":
                (folder / "manifest.json").symlink_to(tmp_path / f"{kind}.json")
            case _:
                os.mkfifo(folder / "manifest.json")
        try:
            failures.append(f"{kind}: added {ArtifactStore(tmp_path / 'ours').add(folder).ref}")
        except InputError:
            continue
        except Exception as error:
            failures.append(f"{kind}: {error!r}")
    assert not failures, "\n".join(failures)


def test_damaged_manifests_break_nothing_but_themselves(tmp_path: Path) -> None:
    """A deep one, a pipe, two that name each other, sixty diamonds, and texts that steer a terminal."""
    store, home = ArtifactStore(tmp_path), ["--home", str(tmp_path)]
    for text, name in (("[" * 100_000, "deep"), ('{"a":' * 400 + "1" + "}" * 400, "deeper")):
        (tmp_path / name / "v1").mkdir(parents=True)
        (tmp_path / name / "v1" / "manifest.json").write_text(text)
    (tmp_path / "pipe" / "v1").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe" / "v1" / "manifest.json")
    digest = content_digest("model", ())
    escape = {"stage": "\x1b]0;gone\x07\nforged:v1  model", "created": "\x1b[2J\x9b2J\u202e"}
    for one, other in (("left", "right"), ("right", "left")):
        parents = (Parent(f"{other}:v1", "model\x1b[1m", digest),)
        forged(tmp_path / one / "v1", name=one, parents=parents, **escape)
    for level in range(60):
        below = Parent(f"d{level - 1}:v1", "model", digest)
        forged(tmp_path / f"d{level}" / "v1", name=f"d{level}", parents=(below, below) if level else ())
    listed = CliRunner().invoke(app, ["ls", *home])
    assert listed.exit_code == 0 and "right:v1" in listed.stdout and listed.stderr.count("vtcli: damaged: ") == 3
    shown = [listed.output]
    for ref in ("left:v1", "d59:v1"):
        printed = CliRunner().invoke(app, ["lineage", ref, *home])
        assert printed.exit_code == 0, printed.exception
        shown.append(printed.output)
    assert "made from itself" in shown[1] and shown[2].count("\n") < 200
    assert not any(set(text) & set("\x1b\x07\x9b\u202e") or "\nforged" in text for text in shown)
    assert any("made from itself" in line for line in store.verify("left:v1")) and store.verify("d59:v1") == []
    assert [a.ref for a in removal.remove(store, ["left:v1"], with_dependants=True)] == ["left:v1", "right:v1"]
    for ref in ("evil:v" + "9" * 5000, "e" * 5000, "evil" * 100 + ":v1", "evil/" * 2000, "evil\0"):
        with pytest.raises(InputError) as error:
            store.resolve(ref)
        assert len(str(error.value)) < 1000
