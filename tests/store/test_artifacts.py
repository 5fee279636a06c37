"""Artifacts are whole or absent, whatever happens, and say what is wrong with them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cases import each_case
from moments import recorded

from vtcli.errors import InputError
from vtcli.store import artifacts, disk, manifest
from vtcli.store.artifacts import Artifact, ArtifactStore


def make(store: ArtifactStore, name: str = "charts", kind="dataset", text: str = "hello", **details) -> Artifact:
    with store.draft(name, kind, **details) as draft:
        (draft.path / "sub").mkdir()
        (draft.path / "sub" / "b.txt").write_text(text)
        (draft.path / "a.txt").write_text("a")
        return draft.commit({"rows": 2})


def test_a_commit_is_a_version_with_its_manifest(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    first = make(store, seed=7, config={"n": 3}, stage="synth")
    assert first.ref == "charts:v1"
    assert make(store, text="other").ref == "charts:v2"
    raw = json.loads((tmp_path / "charts" / "v1" / "manifest.json").read_text())
    # printf hello | sha256sum; printf a | sha256sum
    assert raw["files"] == [
        {"path": "a.txt", "size": 1, "sha256": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},
        {"path": "sub/b.txt", "size": 5, "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"},
    ]
    assert (raw["kind"], raw["schema_version"], raw["seed"], raw["config"]) == ("dataset", 1, 7, {"n": 3})
    assert raw["git_commit"] is None or len(raw["git_commit"].removesuffix("-dirty")) == 40
    assert store.resolve("charts:v1") == first
    assert store.resolve("charts@latest").version == 2
    assert store.resolve(str(first.path)) == first
    assert [a.ref for a in store.ls()] == ["charts:v1", "charts:v2"]
    assert not (first.path / "a.txt").stat().st_mode & 0o222
    assert not list((tmp_path / "charts").glob(".draft*"))


def test_digest_is_of_the_content_only(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    assert make(store).digest == make(store, name="again", seed=3).digest
    assert make(store).digest != make(store, text="changed").digest


@each_case(
    ("ref", "words"),
    [
        ("nothing:v1", "vtcli synth name=nothing"),
        ("charts:v9", "it has v1"),
        ("nothing@latest", "vtcli synth"),
        ("no/such/path", "neither NAME:vN"),
        ("charts", "neither NAME:vN"),
        ("mine/train.jsonl", "becomes one by `vtcli synth`"),
        ("../charts:v1", "neither NAME:vN"),
    ],
)
def test_a_missing_artifact_says_how_to_make_it(tmp_path: Path, ref: str, words: str) -> None:
    store = ArtifactStore(tmp_path)
    make(store)
    with pytest.raises(InputError, match=words):
        store.resolve(ref, kind="dataset")


def test_a_wrong_kind_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    make(store)
    with pytest.raises(InputError, match=r"kind dataset; expected one of kind model.*vtcli sft"):
        store.resolve("charts:v1", kind="model")


def _change(path: Path, old: bytes, new: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(old, new))


@each_case("text", ["", "{", "[]", "{}", '{"checksum": 1}', '"x"', "\0\0"])
def test_a_corrupt_manifest_is_one_clear_error(tmp_path: Path, text: str) -> None:
    store = ArtifactStore(tmp_path)
    path = make(store).path / "manifest.json"
    path.chmod(0o644)
    path.write_text(text)
    with pytest.raises(InputError, match=r"manifest .* is corrupt"):
        store.resolve("charts:v1")
    assert store.ls() == []
    assert len(store.damaged()) == 1
    assert make(store).ref == "charts:v2"  # the number is not used again


def test_a_folder_without_a_manifest_is_said_to_have_none(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    (make(store).path / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"charts/v1 has no manifest: it is not an artifact\. Remove it if it was one"):
        store.resolve("charts:v1")


def test_an_edited_manifest_is_noticed(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    path = make(store, seed=7).path / "manifest.json"
    _change(path, b'"seed": 7', b'"seed": 8')
    with pytest.raises(InputError, match="checksum"):
        store.resolve("charts:v1")
    _change(path, b'"schema_version": 1', b'"schema_version": 9')
    with pytest.raises(InputError, match="schema version 9"):
        store.resolve("charts:v1")


def test_damaged_files_are_noticed_when_read(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    path = make(store).path
    _change(path / "sub" / "b.txt", b"hello", b"hellO")
    with pytest.raises(InputError, match=r"sub/b\.txt has another content"):
        store.resolve("charts:v1")
    assert store.resolve("charts:v1", verify=False).version == 1
    (path / "a.txt").unlink()
    (path / "c.txt").write_text("new")
    assert store.verify("charts:v1") == [
        "a.txt cannot be read (No such file or directory)",
        "sub/b.txt has another content (sha256)",
        "c.txt was added",
    ]


def test_lineage_reaches_the_seed_and_sees_gaps(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    data = make(store, seed=11, stage="synth")
    model = make(store, "policy", "model", parents=(data,), stage="sft")
    make(store, "scores", "report", parents=(model, data), stage="eval")
    tree = store.lineage("scores:v1")
    assert [p.ref for p in tree.parents] == ["policy:v1", "charts:v1"]
    assert tree.parents[0].parents[0].seed == 11
    assert tree.parents[0].parents[0].stage == "synth"
    assert store.verify("scores:v1") == []
    _change(data.path / "a.txt", b"a", b"b")
    assert store.verify("scores:v1") == ["charts:v1, an ancestor: a.txt has another content (sha256)"]
    _change(data.path / "a.txt", b"b", b"a")
    for file in data.path.rglob("*"):
        file.chmod(0o755)
    data.path.rename(tmp_path / "gone")
    assert [line for line in store.verify("scores:v1") if "charts:v1" in line]
    assert store.lineage("scores:v1").parents[1].problem is not None


def test_find_by_fingerprint_passes_over_damaged_ones(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    make(store, fingerprint="f")
    second = make(store, fingerprint="f")
    assert store.find("f") == second
    _change(second.path / "a.txt", b"a", b"b")
    found = store.find("f")
    assert found is not None
    assert found.version == 1
    assert store.find("g") is None
    assert store.find("") is None


def test_what_cannot_be_an_artifact(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    for name in ("", "a/b", ".hidden", "a:v1", "a@b", "a" * 201):
        with pytest.raises(InputError, match="cannot name"), store.draft(name, "dataset"):
            pass
    with pytest.raises(InputError, match="no file"), store.draft("x", "dataset") as draft:
        draft.commit()
    with store.draft("x", "dataset") as draft:
        (draft.path / "link").symlink_to("/etc/passwd")
        with pytest.raises(InputError, match="link"):
            draft.commit()
    assert store.ls() == []
    assert not list(tmp_path.rglob(".draft*"))


def test_a_kill_at_any_change_leaves_a_whole_version_or_none(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    make(store)
    with recorded(tmp_path) as recorder:
        make(store, text="other")
    for moment in recorder.every():
        moment.restore()
        assert store.damaged() == [], moment.change
        found = store.ls()
        assert [store.verify(artifact.ref) for artifact in found] == [[]] * len(found), moment.change
        assert make(store, text="third").version == len(found) + 1
        assert not list(tmp_path.rglob(".draft*")), moment.change  # leftovers were cleared away
    assert len(recorder.every()) > 12 and len(found) == 2


def test_a_live_draft_of_another_process_is_left_alone(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    with store.draft("charts", "dataset") as mine:
        (mine.path / "a.txt").write_text("a")
        pid = os.fork()
        if pid == 0:
            make(store)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert mine.commit().ref == "charts:v2"


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # the manifest does not fit
        try:
            make(store)
        except InputError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        assert "ulimit" in pipe.read()
    assert store.ls() == []
    assert not list(tmp_path.rglob(".draft*"))
    assert make(store).ref == "charts:v1"


def test_importing_artifacts_is_light() -> None:
    code = (
        "import sys, vtcli.store.artifacts\n"
        "heavy = {'torch', 'mlflow', 'pyarrow', 'transformers', 'hydra', 'PIL', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_temporary_files_of_a_killed_writer_are_not_taken_in(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path).draft("x", "dataset") as draft:
        (draft.path / "a.txt").write_text("a")
        disk.temporary(draft.path / "manifest.json").write_text("{")
        made = draft.commit()
    assert [entry.path for entry in made.manifest.files] == ["a.txt"]
    assert sorted(p.name for p in made.path.iterdir()) == ["a.txt", "manifest.json"]


def test_show_is_plain_data(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    make(store, seed=1)
    shown = store.show("charts@latest")
    assert (shown["ref"], shown["size"], shown["seed"]) == ("charts:v1", 6, 1)
    json.dumps(shown)
    assert artifacts.load(Path(shown["path"])).ref == "charts:v1"


def test_a_repository_around_an_installed_package_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "venv" / "package"
    package.mkdir(parents=True)
    (package / "manifest.py").touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    monkeypatch.setattr(manifest, "__file__", str(package / "manifest.py"))
    ask = manifest.git_commit.__wrapped__  # a process keeps the first answer
    assert ask() is None
    subprocess.run([*git, "add", "."], check=True)
    assert ask() is not None
