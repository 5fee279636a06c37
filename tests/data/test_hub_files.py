"""Public sets by name, from a server that speaks the hub's protocol: honest, lying, stopping midway, busy, or away."""

from __future__ import annotations

import base64
import hashlib
import json
import resource
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import world
import yaml
from hub_server import COMMIT, HubServer, Repo
from small_runs import command

from vtcli.data.exporters.writing import export
from vtcli.data.generators import canvas
from vtcli.data.importers import hub_files
from vtcli.data.importers.hub_files import matches
from vtcli.errors import InputError
from vtcli.store.artifacts import ArtifactStore

PNG = base64.b64encode(canvas.png(np.full((40, 60, 3), 90, np.uint8))).decode()
ROWS = "index\timage\tquestion\tanswer\n" + "".join(f"{i}\t{PNG}\tWhat is {i}?\t{i}\n" for i in range(40))
TSV = ROWS.encode()
SHA = hashlib.sha256(TSV).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"  # made of HF_ENDPOINT at import
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("time.sleep", lambda _: None)
        server.repos["datasets/me/quiz"] = Repo(
            {"quiz.tsv": TSV, "other.tsv": b"not asked for", "README.md": b"About it.", ".gitattributes": b"x"}
        )
        yield server


def own(folder: Path, **changes: object) -> list[str]:
    """A folder of a user's own, with a benchmark ``quiz``."""
    form = {"files": "quiz.tsv", "sha256": SHA}
    quiz = {"title": "Quiz", "formats": [form], "rows": 40, "scores": ["exact"], "hub": ["me/quiz"], "licence": "CC0"}
    (folder / "conf" / "benchmark").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "benchmark" / "quiz.yaml").write_text(yaml.safe_dump({"quiz": quiz | changes}))
    return ["--config-dir", str(folder / "conf"), "--into", str(folder / "sets")]


def get(*words: str) -> tuple[int, str]:
    return command(["benchmarks", "get", *words])


def test_a_benchmark_is_shown_fetched_and_checked(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = get("quiz", "--yes", *own(tmp_path))
    shown = capsys.readouterr().err
    assert code == 0 and "complete: 40 of 40 rows, version as stated" in out
    assert f"vtcli eval model=policy@latest 'benchmark=[quiz]' eval.benchmarks_in={tmp_path / 'sets'}" in shown
    for said in ("licence: CC0", "on its card: mit", COMMIT, "MB", "2 files", f"me/quiz@{COMMIT}"):
        assert said in shown
    place = tmp_path / "sets" / "quiz"
    assert (place / "quiz.tsv").read_bytes() == TSV and (place / "README.md").is_file()
    assert "other.tsv" not in hub.sent and not (place / "other.tsv").exists()
    before = dict(hub.sent)
    assert get("quiz", "--yes", *own(tmp_path))[0] == 0 and hub.sent == before  # nothing is sent twice


def test_nothing_is_fetched_without_a_yes(tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert get("quiz", *own(tmp_path))[0] == 2
    assert "--yes" in capsys.readouterr().err and not hub.sent and not (tmp_path / "sets").exists()


def test_a_copy_keeps_the_revision_of_its_lock_here_and_on_another_machine(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    repo, lock = hub.repos["datasets/me/quiz"], tmp_path / "sets" / "quiz" / "hub.lock"
    assert get("quiz", "--yes", *own(tmp_path))[0] == 0
    locked = json.loads(lock.read_text())["me/quiz"]
    assert locked["commit"] == COMMIT and locked["files"]["quiz.tsv"] == SHA
    there = tmp_path / "there" / "sets" / "quiz" / "hub.lock"
    there.parent.mkdir(parents=True)
    shutil.copy(lock, there)
    repo.files["quiz.tsv"] = TSV.replace(b"What", b"Who?")  # the hub lists other rows under the same commit
    for folder in (tmp_path, tmp_path / "there"):
        assert get("quiz", "--yes", *own(folder))[0] == 2
        assert f"at revision {COMMIT} with another digest than" in capsys.readouterr().err
    repo.commit = "f" * 40
    pinned = [*own(tmp_path / "pinned", hub=[f"me/quiz@{repo.commit}"])[:-1], str(there.parents[1])]
    for words, told in ((own(tmp_path / "there"), f"me/quiz@{COMMIT}"), (pinned, f"{repo.commit} was asked")):
        assert get("quiz", "--yes", *words)[0] == 2
        assert told in capsys.readouterr().err and not there.with_name("quiz.tsv").exists()
    get("quiz", "--yes", "--newest", *own(tmp_path))
    assert (lock.with_name("quiz.tsv")).read_bytes() == repo.files["quiz.tsv"]
    assert json.loads(lock.read_text())["me/quiz"]["commit"] == repo.commit


def test_a_replacement_that_stopped_goes_on_and_leaves_no_file_of_the_old_revision(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = hub.repos["datasets/me/quiz"] = Repo({f"part-{i}.tsv": TSV + b"%d" % i for i in range(2)})
    lock, listing = tmp_path / "hub.lock", lambda: hub_files.survey("me/quiz", [("part-*.tsv", True)], tmp_path)
    hub_files.fetch(listing(), tmp_path)
    old = lock.read_text()
    for number, again in enumerate((True, False)):
        repo.files = {f"part-{i}.tsv": TSV[: -10 - number] + b"%d" % i for i in range(2, 5)}
        repo.files["part-1.tsv"] = TSV[: 99 - number]
        repo.commit, hub.budget = str(number) * 40, len(TSV) * 2
        with pytest.raises(InputError):
            hub_files.fetch(listing(), tmp_path)
        assert hub_files.locked_name("me/quiz", tmp_path) == f"me/quiz@{repo.commit}"
        hub.budget, already = None, sum(hub.sent.values())
        if not again:
            hub_files.require_locked(listing(), tmp_path)
        hub_files.fetch(listing(), tmp_path)
        left = sum(map(len, repo.files.values())) - len(TSV) * 2
        assert sum(hub.sent.values()) - already == left
        assert sorted(path.name for path in tmp_path.glob("part-*")) == sorted(repo.files)
        assert all((tmp_path / name).read_bytes() == data for name, data in repo.files.items())
    lock.write_text(old.replace("part-0.tsv", "../part-0.tsv"))
    with pytest.raises(InputError, match="leads out of its folder"):
        hub_files.fetch(listing(), tmp_path)


def test_a_mirror_that_lies_is_found_out(tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    repo = hub.repos["datasets/me/quiz"]
    repo.lies.add("quiz.tsv")
    assert get("quiz", "--yes", *own(tmp_path))[0] == 2
    assert "is not what me/quiz lists" in capsys.readouterr().err
    assert not (tmp_path / "sets" / "quiz" / "quiz.tsv").exists()
    repo.lies.clear()
    assert get("quiz", "--yes", *own(tmp_path))[0] == 0
    (tmp_path / "again").mkdir()
    repo.files["quiz.tsv"] = TSV.replace(b"What", b"Who?")  # listed and sent alike, and another than was pinned
    _, out = get("quiz", "--yes", *own(tmp_path / "again"))
    assert "NOT complete" in out and "version another" in out


def test_a_download_that_stopped_goes_on_where_it_was(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.budget = len(TSV) // 2
    assert get("quiz", "--yes", *own(tmp_path))[0] == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "sets" / "quiz" / "quiz.tsv").exists()
    hub.budget = None
    assert get("quiz", "--yes", *own(tmp_path))[0] == 0
    assert hub.sent["quiz.tsv"] == len(TSV) and any(hub.ranges)


@pytest.mark.parametrize("ranged", [True, False])
def test_a_mirror_that_serves_another_length_is_left_after_some_attempts(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str], ranged: bool
) -> None:
    hub.ranged, sends = ranged, hub.repos["datasets/me/quiz"].sends
    part = tmp_path / "sets" / "quiz" / f".quiz.tsv.{SHA[:16]}.part"
    sends["quiz.tsv"] = TSV[: len(TSV) // 2]
    assert get("quiz", "--yes", *own(tmp_path))[0] == 2
    assert f"only {len(TSV) // 2} came, 5 times" in capsys.readouterr().err and len(hub.ranges) < 12
    assert part.stat().st_size == len(TSV) // 2
    sends["quiz.tsv"] = TSV * 1000
    assert get("quiz", "--yes", *own(tmp_path))[0] == 2
    assert f"{len(TSV)} bytes, and more came" in capsys.readouterr().err
    assert not part.exists()
    sends.clear()
    assert get("quiz", "--yes", *own(tmp_path))[0] == 0 and (tmp_path / "sets" / "quiz" / "quiz.tsv").is_file()


def test_a_full_disk_is_named_and_not_tried_again(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    words = own(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(TSV) // 2, hard))
    try:
        assert get("quiz", "--yes", *words)[0] == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    shown = capsys.readouterr().err
    assert "Cannot write" in shown and "--into" in shown and "cannot be reached" not in shown
    assert hub.ranges.count("bytes=0-") <= 2  # one for each file
    assert get("quiz", "--yes", *own(tmp_path))[0] == 0  # what was written stays


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repos["datasets/me/deep"] = Repo({"data/quiz.tsv": TSV})
    (tmp_path / "sets" / "quiz").mkdir(parents=True)
    (tmp_path / "sets" / "quiz" / "data").write_text("a file")
    assert get("quiz", "--yes", *own(tmp_path, hub=["me/deep"]))[0] == 2
    shown = capsys.readouterr().err
    assert "Cannot write" in shown and "cannot be reached" not in shown


def test_an_interrupt_stops_the_files_under_way(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while a part of a file is asked for again and again, which without it would never end."""
    listing = hub_files.survey("me/quiz", [("quiz.tsv", True)], tmp_path)
    hub.repos["datasets/me/quiz"].sends["quiz.tsv"] = TSV[:100]
    monkeypatch.setattr(hub_files, "ATTEMPTS", 10**9)

    def interrupted(tasks: object) -> Iterator[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(hub_files, "as_completed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hub_files.fetch(listing, tmp_path / "set")


def test_a_busy_hub_is_waited_for_and_then_named(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.busy = 2
    assert get("quiz", "--yes", *own(tmp_path))[0] == 0
    (tmp_path / "again").mkdir()
    hub.busy = 10**6
    assert get("quiz", "--yes", *own(tmp_path / "again"))[0] == 2
    assert "answered 429" in capsys.readouterr().err


def test_without_a_way_one_line_has_the_command_for_another_machine(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "sets" / "quiz"
    for change in (("ENDPOINT", "http://127.0.0.1:9"), ("HF_HUB_OFFLINE", True)):
        with monkeypatch.context() as patch:
            patch.setattr(f"huggingface_hub.constants.{change[0]}", change[1])
            assert get("quiz", "--yes", *own(tmp_path, hub=["me/quiz@abc"]))[0] == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.endswith(f"hf download me/quiz --repo-type dataset --revision abc --local-dir {place}")


def test_what_the_hub_does_not_give_is_one_error(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repos["datasets/me/gated"] = Repo({"quiz.tsv": TSV}, gated=True)
    hub.repos["datasets/me/renamed"] = Repo({"data/quiz-v2.tsv": TSV})
    cases = {
        "me/none": "no set me/none",
        "me/quiz@beef": "no set me/quiz@beef",
        "me/gated": "accept them at",
        "me/renamed": "data/quiz-v2.tsv",
    }
    for number, (name, said) in enumerate(cases.items()):
        assert get("quiz", "--yes", *own(tmp_path / str(number), hub=[name]))[0] == 2
        assert said in capsys.readouterr().err
    assert get("quiz", "--yes", *own(tmp_path / "pinned", hub=[f"me/quiz@{COMMIT}"]))[0] == 0
    assert ", pinned" in capsys.readouterr().err
    assert get("quiz", *own(tmp_path / "none", hub=[]))[0] == 2 and get("nothing")[0] == 2
    assert "codev_rl" in capsys.readouterr().err


def test_rows_with_files_beside_them_bring_all_and_several_sets_a_folder_each(tmp_path: Path, hub: HubServer) -> None:
    for part in ("Easy", "Medium", "Hard"):
        rows = b'[{"images": ["data/a.png"], "problem": "What?", "solution": "x"}]'
        hub.repos[f"datasets/Mini-o3/VisualProbe_{part}"] = Repo(
            {"val.json": rows, "data/a.png": base64.b64decode(PNG)}
        )
    _, out = get("visualprobe", "--yes", "--into", str(tmp_path))
    assert "NOT complete: 3 of 515 rows" in out
    assert (tmp_path / "visualprobe" / "VisualProbe_Hard" / "data" / "a.png").is_file()


def test_a_papers_set_is_fetched_and_imported(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ArtifactStore(world.linked(tmp_path / "home", "data"))
    export(store, "data@latest", "verl", tmp_path / "verl")
    parquet = (tmp_path / "verl" / "answer-train.parquet").read_bytes()
    hub.repos["datasets/RenlyH/CodeV-RL-Data"] = Repo({"data/train-0.parquet": parquet}, licence=None)
    code, _ = get("codev_rl", "--yes", "--into", str(tmp_path / "sets"))
    shown = capsys.readouterr().err
    assert code == 0 and "theirs is sha256: " + hashlib.sha256(parquet).hexdigest() in shown
    words = shlex.split(shown.splitlines()[-1].split("vtcli synth ")[1])
    few = ["data.tasks.codev_rl.validation=0", "data.tasks.codev_rl.test=0", "data.tasks.codev_rl.train=4"]
    few += ["data.tasks.codev_rl.generate.reading.take={train: [0, 4]}", "scale=tiny", "tracker=none"]
    assert command(["synth", *words, *few, "synth.workers=1", "name=codev", f"home={store.root}"])[0] == 0
    assert store.resolve("codev@latest").manifest.summary["rows"]["answer-train"] == {"codev_rl": 4}


def test_where_a_pattern_is_looked_for() -> None:
    assert matches("VStarBench.tsv", "VStarBench.tsv") and matches("data/a-0.parquet", "a-*.parquet")
    assert matches("DocVQA/validation-0.parquet", "DocVQA/validation-*.parquet")
    assert matches("val.json", "VisualProbe_*/val.json", "VisualProbe_Hard")
    assert not matches("old/a-0.parquet", "a-*.parquet") and not matches("a/b.tsv", "*.tsv")
