"""The identity of a run: files and code from outside count, wherever they are found, and changed ones are refused."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from cases import each_case

from vtcli.errors import InputError
from vtcli.runs import identity
from vtcli.runs.identity import Identity
from vtcli.runs.run import RunSettings, Scope, StageRun, open_run
from vtcli.store import hashes, sources
from vtcli.store.artifacts import Artifact
from vtcli.store.sources import outside_code

NODE = {"_target_": "mine.rewards.total", "weight": 0.5}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of somebody else on PYTHONPATH: rewards import a sibling, which imports a module beside the package
    inside a function."""
    folder = tmp_path / "outside" / "mine"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "rewards.py").write_text("import json\nfrom . import terms\nfrom vtcli.rewards import toolsrl\n")
    (folder / "terms.py").write_text("def bonus():\n    from more.tables import rows\n    return rows\n")
    (folder / "unused.py").write_text("x = 1\n")
    (tmp_path / "outside" / "more").mkdir()  # without __init__.py
    (tmp_path / "outside" / "more" / "tables.py").write_text("rows = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "outside"))
    return folder


def settings(home: Path) -> RunSettings:
    return RunSettings("charts", home, seed=3)


def commit(run: StageRun, text: str = "x") -> Artifact:
    (run.work / "out").mkdir()
    (run.work / "out" / "a.txt").write_text(text)
    return run.commit(run.work / "out")


def make(home: Path, config: dict, text: str = "x") -> Artifact:
    with open_run(settings(home), "rl", "model", config, []) as run:
        return run.reused or commit(run, text)


def test_the_source_of_a_bound_function_and_of_what_it_imports_from_beside(mine: Path) -> None:
    found = outside_code(["mine.rewards.total", "vtcli.rewards.toolsrl.stage1", "json.dumps", "numpy.mean"])
    assert set(found) == {"mine", "mine.rewards", "mine.terms", "more.tables", "numpy"}
    assert found["numpy"][0].isdigit() and len(found["mine.rewards"]) == 64
    (mine / "unused.py").write_text("x = 2\n")
    assert outside_code(["mine.rewards.total", "numpy.mean"]) == found
    (mine.parent / "more" / "tables.py").write_text("rows = 2\n")
    now = outside_code(["mine.rewards.total", "numpy.mean"])
    assert [name for name in found if now[name] != found[name]] == ["more.tables"]


def test_packages_that_another_environment_holds_are_not_read(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment may borrow the packages of the system."""
    borrowed = mine.parent / "lib" / "site-packages"
    (borrowed / "theirs").mkdir(parents=True)
    (borrowed / "theirs" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(borrowed))
    assert outside_code(["theirs.total"]) == {}


@each_case(
    ("statement", "package", "module"),
    [
        ("import a.b", "p", "a.b"),
        ("from a import b", "p", "a.b"),
        ("from . import x", "p.q", "p.q.x"),
        ("from .x import y", "p.q", "p.q.x"),
        ("from ..x import y", "p.q", "p.x"),
        ("from .. import x", "p.q", "p.x"),
    ],
)
def test_every_form_of_import_is_followed(statement: str, package: str, module: str) -> None:
    assert module in sources._imports(statement.encode(), package)
    assert sources._imports(b"def broken(", package) == []


def test_an_edited_reward_of_ones_own_makes_another_artifact(
    mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"rl": {"phases": [{"reward": {"_target_": "vtcli.rewards.toolsrl.stage1", "inner": NODE}}]}}
    first = make(tmp_path, config)
    assert make(tmp_path, config).ref == first.ref
    (mine / "terms.py").write_text("bonus = 2\n")
    assert make(tmp_path, config, "y").version == 2
    assert "the module mine.terms" in caplog.text and "changed since this command made charts:v1" in caplog.text


def test_code_is_mended_where_an_attempt_has_no_result_yet(mine: Path, tmp_path: Path) -> None:
    """It left the file that its first result would have gone to."""

    def failed() -> None:
        with open_run(settings(tmp_path), "rl", "model", {"rl": {"reward": NODE}}, []) as run:
            (run.work / "rollouts").mkdir()
            (run.work / "trajectories.jsonl").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failed()
    (mine / "rewards.py").write_text("total = max\n")
    with open_run(settings(tmp_path), "rl", "model", {"rl": {"reward": NODE}}, []) as run:
        assert not (run.work / "rollouts").exists()


def test_code_that_changes_in_the_midst_of_an_interrupted_run_is_refused(mine: Path, tmp_path: Path) -> None:
    config = {"rl": {"reward": NODE}}

    def interrupted() -> None:
        with open_run(settings(tmp_path), "rl", "model", config, []) as run:
            (run.work / "checkpoint").write_text("step 2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    before = (mine / "rewards.py").read_text()
    (mine / "rewards.py").write_text("total = max\n")
    with pytest.raises(
        InputError, match=r"the module mine.rewards, .*changed since an earlier attempt.*remove .*\.work"
    ):
        open_run(settings(tmp_path), "rl", "model", config, []).__enter__()
    (mine / "rewards.py").write_text(before)
    with open_run(settings(tmp_path), "rl", "model", config, []) as run:
        assert (run.work / "checkpoint").read_text() == "step 2"


def test_a_run_that_refused_its_input_goes_on_with_the_mended_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = tmp_path / "rows.tsv"
    given.write_text("bad")

    def refused() -> None:
        with open_run(settings(tmp_path), "eval", "report", {}, [], Scope(inputs={"rows": given})) as run:
            (run.work / "images").mkdir()
            raise InputError("row 1 has no answer")

    with pytest.raises(InputError, match="no answer"):
        refused()
    given.write_text("good")
    with open_run(settings(tmp_path), "eval", "report", {}, [], Scope(inputs={"rows": given})) as run:
        assert not (run.work / "images").exists()
    assert "dropped" not in caplog.text  # there was no work


def test_our_own_source_makes_another_artifact_but_loses_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted() -> None:
        with open_run(settings(tmp_path), "rl", "model", {}, []) as run:
            (run.work / "checkpoint").write_text("step 2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    monkeypatch.setattr(identity, "package_source", lambda: "another")
    with open_run(settings(tmp_path), "rl", "model", {}, []) as run:
        assert (run.work / "checkpoint").exists() and "goes on with the new one" in caplog.text
        commit(run)
    assert make(tmp_path, {}).version == 1
    monkeypatch.undo()
    assert make(tmp_path, {}).version == 2
    assert "the source of vtcli changed since this command made charts:v1" in caplog.text


def test_a_long_prompt_of_a_plug_point_is_no_file() -> None:
    prompt = "You judge answers of a model. " + "Say what is right. " * 20  # longer than a name of a file may be
    assert not list(sources.files_of({"reward": {"_target_": "my.reward", "prompt": prompt, "more": [prompt]}}))


def test_a_file_that_a_plug_points_value_names_counts(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("one")
    config = {"rl": {"reward": {"_target_": "vtcli.rewards.toolsrl.stage1", "words": str(words), "text": "a.b"}}}
    first = make(tmp_path, config)
    assert first.manifest.identity["files"] == {str(words): first.manifest.identity["files"][str(words)]}
    words.write_text("two")
    assert make(tmp_path, config, "y").version == 2


def test_an_input_is_hashed_again_only_where_it_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, memory, asked = tmp_path / "a", tmp_path / "hashes.json", []
    file.write_text("one")
    monkeypatch.setattr(hashes, "hash_file", lambda path: asked.append(path) or path.read_text())
    assert hashes.digests({"a": file}, memory) == {"a": "one"} == hashes.digests({"a": file}, memory)
    assert len(asked) == 2  # just written: a second write within the clock's tick would not be seen
    later = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: later)
    hashes.digests({"a": file}, memory)
    assert hashes.digests({"a": file}, memory) == {"a": "one"} and len(asked) == 3
    times = file.stat()
    file.write_text("two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # size and time as before
    assert hashes.digests({"a": file, "b": tmp_path / "none"}, memory) == {"a": "two", "b": hashes.MISSING}


def test_our_own_source_is_hashed_without_the_command_line(tmp_path: Path) -> None:
    identity.package_source.cache_clear()
    assert len(identity.package_source()) == 64 and "cli" in sources.WITHOUT_EFFECT
    assert Identity("r", {}, {}, "1").fingerprint != Identity("r", {}, {}, "2").fingerprint
    assert Identity.read(Identity("r", {"a": "1"}, {"m": "2"}, "3").plain) == Identity("r", {"a": "1"}, {"m": "2"}, "3")
    assert Identity.read({}) == Identity("")
    assert "mine" not in sys.modules
