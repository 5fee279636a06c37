"""``eval.policy=imported``: what other people's models did, in their files' own forms, measured for faithfulness."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_copies import parquet, tsv
from foreign_runs import (
    ASKED,
    ELSEWHERE,
    RED,
    call,
    deepeyes,
    hrbench,
    inspect_log,
    inspect_zip,
    lines,
    picture,
    pixel_reasoner,
    png,
    thyme,
    uri,
    verl,
)
from judge_server import JudgeServer, pictures, text_of, verdict

from stages import eval as stage
from vtcli.config import binding, compose
from vtcli.data.importers.trajectories import ImportedRuns, QuestionSet
from vtcli.engines.openai import baseline
from vtcli.errors import ConfigError, InputError
from vtcli.schema import Scored, Stop
from vtcli.store import records
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageLimits, ImageStore

WAYS: Sequence[tuple[Sequence[int] | None, str]] = [(RED, "red"), (ELSEWHERE, "red"), (None, "red"), (RED, "blue")]
"""A right answer that rests on the crop, one that does not, one without a tool, and a wrong one."""


def judge(body: dict[str, Any], number: int = 0) -> Any:
    """Says of a crop whether red is in it, and of an answer whether it says red."""
    if shown := pictures(body):
        lowest = 0.25 if "0.25" in body["messages"][0]["content"] else 0.0
        return verdict(1.0 if any((p[:, :, 0].astype(int) - p[:, :, 1] > 100).mean() > 0.05 for p in shown) else lowest)
    return verdict(float("red" in text_of(body).rpartition("answer:")[2]))


@functools.cache
def composed() -> dict[str, Any]:
    words = ["eval.policy=imported", "eval.model=other", "scale=tiny", "tracker=none", "+recipe=codev"]
    return compose.load("eval", [*words, "judge=openai", "judge.url=http://x/v1", "judge.model=m"]).values


def measured(tmp_path: Path, server: JudgeServer, **imported: Any) -> Artifact:
    values = copy.deepcopy(composed())
    values["eval"]["imported"] |= {key: str(value) if key == "path" else value for key, value in imported.items()}
    values["judge"]["url"], values["home"] = server.url, str(tmp_path / "home")
    values["images"] = {"min_pixels": 16, "max_pixels": 10**6}
    return stage.run(binding.stage(stage.Config, values))


def found(artifact: Artifact) -> list[Scored]:
    return list(records.read(artifact.path / "trajectories.jsonl", Scored))


def kinds(artifact: Artifact) -> list[tuple[Any, Any, int]]:
    """Of each trajectory: right, faithful, number of pictures that its calls made."""
    return sorted(
        (s.signals.values["answer_correct"], s.signals.values["faithful"], len(s.trajectory.images) - 1)
        for s in found(artifact)
    )


EXPECTED = sorted([(1, 1, 1), (1, 0, 1), (1, 0, 0), (0, 1, 1)])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("vtcli.judging.model.failure", lambda check, ruling: None)  # this judge knows one colour
    with JudgeServer(judge) as server:
        yield server


def test_deepeyes_results_without_pictures_are_cut_again_from_the_boxes(tmp_path: Path, server: JudgeServer) -> None:
    folder = tmp_path / "vstar" / "direct_attributes"
    folder.mkdir(parents=True)
    rows = []
    for number, (box, said) in enumerate(WAYS):
        (folder / f"{number}.png").write_bytes(png(picture(number)))
        rows.append(deepeyes(f"{number}.png", box, "B. red" if said == "red" else "A"))
    (folder / "4.png").write_bytes(png(picture(4)))
    rows.append(deepeyes("4.png", None, "", status="error", pred_output=rows[0]["pred_output"][:2]))
    path = lines(tmp_path / "result_direct_attributes_x.jsonl", rows)
    given = {"path": path, "row": "deepeyes_results", "reading": {"root": [str(folder)]}, "name": "vstar"}
    made = measured(tmp_path, server, **given)
    whole = [s for s in found(made) if s.trajectory.stop is not Stop.BROKEN]
    assert (
        sorted(
            (s.signals.values["answer_correct"], s.signals.values["faithful"], len(s.trajectory.images) - 1)
            for s in whole
        )
        == EXPECTED
    )
    (broken,) = [s for s in found(made) if s.trajectory.stop is Stop.BROKEN]
    assert "no turn of the model" in str(broken.trajectory.error)
    first = next(s.trajectory for s in whole if s.signals.values["answer_correct"] == 0)
    assert first.sample.question == f"{ASKED}\nOptions: \nA. blue\nB. red"
    assert first.sample.truth["choices"] == ["blue", "red"]
    crop = first.images[1]
    assert (crop.parent, crop.transform) == (0, {"op": "zoom", "box": list(map(float, RED)), "box_full": list(RED)})
    summary = made.manifest.summary
    assert (summary["answer.all.accuracy"], summary["answer.all.accuracy.n"]) == (3 / 4, 4.0)
    page = (made.path / "report.html").read_text()
    assert "unfaithful" in page and "no tool" in page
    assert measured(tmp_path, server, **given).ref == made.ref


def test_rollouts_of_verl_find_their_pictures_in_the_set_that_was_asked(tmp_path: Path, server: JudgeServer) -> None:
    asked = [f"{ASKED} Number {n}?" for n in range(len(WAYS))]
    rows = [
        {
            "data_source": "vstar",
            "prompt": [{"role": "user", "content": f"<image>\n{question}"}],
            "images": [{"bytes": png(picture(n)), "path": None}],
            "reward_model": {"ground_truth": "red", "style": "model"},
            "extra_info": {"question": question, "answer": "red"},
        }
        for n, question in enumerate(asked)
    ]
    parquet(tmp_path / "set.parquet", rows)
    told = [verl(question, box, said) for question, (box, said) in zip(asked, WAYS, strict=True)]
    lines(tmp_path / "3.jsonl", [*told, told[0]])  # two rollouts of one question
    given = {"row": "verl_rollouts", "questions": {"path": str(tmp_path / "set.parquet"), "row": "verl"}}
    made = measured(tmp_path, server, path=tmp_path / "3.jsonl", **given)
    assert kinds(made) == sorted([*EXPECTED, (1, 1, 1)])
    assert {s.trajectory.sample.task for s in found(made)} == {"vstar"}
    assert made.manifest.summary["answer.all.accuracy.n"] == 4.0  # questions, not rollouts
    assert measured(tmp_path, server, path=tmp_path / "3.jsonl", **given).ref == made.ref
    parquet(tmp_path / "set.parquet", [row | {"data_source": "other"} for row in rows])  # what is scored has changed
    again = measured(tmp_path, server, path=tmp_path / "3.jsonl", **given)
    assert {s.trajectory.sample.task for s in found(again)} == {"other"}
    lines(tmp_path / "4.jsonl", [*told, verl("What else?", None, "red")])
    said = r"(?s)0 rows of eval.imported.questions ask 'What else\?'.*eval\.bad_rows=skip"
    with pytest.raises(InputError, match=said):
        measured(tmp_path, server, path=tmp_path / "4.jsonl", **given)


def test_lines_of_hrbench_take_their_picture_from_its_tsv_and_keep_their_own_order_of_options(tmp_path: Path) -> None:
    """One question in two orders is two rows of the TSV about one picture."""
    orders = [{"A": "blue", "B": "red", "answer": "B"}, {"A": "red", "B": "blue", "answer": "A"}]
    tsv(
        tmp_path / "hr_bench_4k.tsv",
        [{"index": n, "image": uri(picture()).split(",")[1], "question": ASKED, **o} for n, o in enumerate(orders)],
    )
    lines(tmp_path / "r.jsonl", [hrbench(RED, "B. red"), hrbench(None, "A")])
    asked = QuestionSet(str(tmp_path / "hr_bench_4k.tsv"), None, {"images": ["image"]}, column="question")
    runs = ImportedRuns(path=str(tmp_path / "r.jsonl"), row="deepeyes_results", questions=asked)
    store = ImageStore(tmp_path / "images", baseline.sizing(ImageLimits(16, 10**6)))
    ((cut, none),) = runs.read(store, tmp_path, "error").values()
    assert cut.sample == none.sample and cut.sample.truth["choices"] == ["blue", "red"] and cut.sample.answer == "B"
    assert (cut.images[1].transform or {})["box_full"] == list(RED) and cut.results[0].images == (1,)
    assert (cut.answer, none.answer, len(none.images)) == ("B. red", "A", 1)
    tsv(
        tmp_path / "hr_bench_4k.tsv",
        [{"index": n, "image": uri(picture(n)).split(",")[1], "question": ASKED, **o} for n, o in enumerate(orders)],
    )
    with pytest.raises(InputError, match=r"2 rows of eval\.imported\.questions"):
        runs.read(store, tmp_path, "error")


@pytest.mark.parametrize("form", ["thyme", "pixel_reasoner", "inspect", "inspect.eval"])
def test_pictures_that_a_file_has_come_with_their_places(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("rows.parquet" if form == "thyme" else "log.json")
    if form == "thyme":
        parquet(path, [thyme(box, said) for box, said in WAYS])
    elif form == "inspect.eval":
        path, form = inspect_zip(tmp_path / "log.eval", inspect_log(WAYS)), "inspect"
    elif form == "pixel_reasoner":
        path = lines(tmp_path / "rows.jsonl", [pixel_reasoner(box, said) for box, said in WAYS])
    else:
        path.write_text(json.dumps(inspect_log(WAYS)))
    row = {"thyme": "thyme_sft", "pixel_reasoner": "openai"}.get(form, form)
    own = {} if form == "inspect" else {"answer": ["answer"]}  # the truth, beside what was said
    runs = ImportedRuns(path=str(path), row=row, columns=own)
    store = ImageStore(tmp_path / "images", baseline.sizing(ImageLimits(16, 10**6)))
    read = [one for group in runs.read(store, tmp_path, "error").values() for one in group]
    by_way = {}
    for trajectory in read:
        assert trajectory.sample.question == ASKED and trajectory.sample.answer == "red"
        places = [(ref.parent, tuple((ref.transform or {})["box_full"])) for ref in trajectory.images[1:]]
        assert [r.images for r in trajectory.results] == [(1,)] * len(places)
        for ref in trajectory.images[1:]:
            assert np.array_equal(store.full(ref)[:, :, 0].mean() > 200, places[0][1] == RED)
        by_way[(places[0][1] if places else None, str(trajectory.answer))] = trajectory
    said = {"inspect": "ANSWER: {}", "pixel_reasoner": "It is \\boxed{{{}}}"}.get(form, "{}")
    assert set(by_way) == {(box, said.format(words)) for box, words in WAYS}
    assert {t.sample.task for t in read} == {"vstar" if form == "inspect" else "imported"}
    assert len(read[0].sample.tools) == 1


def test_a_damaged_log_of_inspect_costs_its_sample_or_is_one_error(tmp_path: Path) -> None:
    path = inspect_zip(tmp_path / "log.eval", inspect_log(WAYS))
    data = bytearray(path.read_bytes())
    at = data.index(b"samples/1_epoch_1.json") + 60
    data[at : at + 40] = bytes(40)
    path.write_bytes(data)
    store = ImageStore(tmp_path / "images", baseline.sizing(ImageLimits(16, 10**6)))
    runs = ImportedRuns(path=str(path), row="inspect")
    assert sum(map(len, runs.read(store, tmp_path, "skip").values())) == 3
    with pytest.raises(InputError, match=r"1 × a damaged sample.*\n.*samples/1_epoch_1\.json"):
        runs.read(store, tmp_path, "error")
    path.write_bytes(data[:200])
    with pytest.raises(InputError, match=r"log\.eval"):
        runs.read(store, tmp_path, "error")


def test_a_row_that_cannot_be_read_is_named_and_costs_no_other(tmp_path: Path) -> None:
    talk = [("human", "Q?"), ("gpt", call(RED)), ("observation", "<image>"), ("gpt", "red")]
    bare = {"conversations": [{"from": who, "value": said} for who, said in talk], "images": [uri(picture())]}
    whole = copy.deepcopy(bare) | {"images": [uri(picture())] * 2}
    whole["conversations"][0]["value"] = "<image>Q?"
    store = ImageStore(tmp_path / "images", baseline.sizing(ImageLimits(16, 10**6)))
    runs = ImportedRuns(path=str(lines(tmp_path / "r.jsonl", [bare, whole])), row="sharegpt")
    assert sum(map(len, runs.read(store, tmp_path, "skip").values())) == 1
    with pytest.raises(InputError, match=r"row 0 of .* its first picture stands in a later turn"):
        runs.read(store, tmp_path, "error")
    row = {"prompt": [{"role": "user", "content": "<image>Q?"}], "images": [{"bytes": png(picture()), "path": None}]}
    row |= {"data_source": "x", "reward_model": {"ground_truth": "red"}}
    asked = QuestionSet(
        str(parquet(tmp_path / "set.parquet", [row, row | {"prompt": [{"role": "x", "content": "Q?"}]}]))
    )
    odd = verl("Q?", None, "red") | {"input": [{"role": 5, "content": "Q?"}]}
    path = lines(tmp_path / "3.jsonl", [odd, verl("Q?", None, "red")])
    runs = ImportedRuns(path=str(path), row="verl_rollouts", questions=replace(asked, row="verl"))
    assert sum(map(len, runs.read(store, tmp_path, "skip").values())) == 1
    with pytest.raises(InputError, match=r"row 0 of .*3\.jsonl: a message is of '5'"):
        runs.read(store, tmp_path, "error")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "eval.policy=imported needs eval.imported.path"),
        ({"path": "x.jsonl", "row": "verl"}, "row=verl reads no trajectories: expected one of deepeyes_results"),
        (
            {"path": "x.jsonl"},
            "row=null reads no trajectories: expected one of deepeyes_results.* or messages or response",
        ),
        ({"path": "x.jsonl", "columns": {"question": "q"}}, "row=null reads no trajectories"),
        ({"path": "x.jsonl", "columns": {"messages": "talk"}}, "Cannot|no file|x.jsonl"),
        ({"path": "x.jsonl", "row": "deepeye"}, "no public set 'deepeye'"),
        ({"path": "x.jsonl", "row": "inspect"}, "x.jsonl"),
    ],
)
def test_a_slip_is_one_clear_error(tmp_path: Path, server: JudgeServer, given: Mapping[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, InputError), match=told):
        measured(tmp_path, server, **given)


def test_files_go_with_their_policy() -> None:
    with pytest.raises(ConfigError, match=r"eval\.policy=imported.*eval\.policy=model"):
        ImportedRuns(path="x.jsonl", row="inspect").require("model")


@pytest.mark.parametrize(("shard", "merge", "told"), [("1/2", None, "eval.shard=1/2"), (None, 2, "eval.merge=2")])
def test_files_are_read_whole(shard: str | None, merge: int | None, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        stage.require_shards(shard, merge, "imported")
