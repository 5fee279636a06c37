"""Benchmarks' local copies as datasets of ``vtcli synth``: the questions, turns and pictures of ``vtcli eval``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from benchmark_copies import b64, parquet, shipped, struct, tsv
from cases import each_case
from fakes import make_pixels

from stages import synth as stage
from vtcli.benchmarks import questions
from vtcli.benchmarks.samples import load
from vtcli.config import compose
from vtcli.data.importers.problems import RowProblem
from vtcli.errors import InputError
from vtcli.store.images import ImageStore, as_given, decode, encode_png


def copies(folder: Path) -> None:
    """DocVQA as TSV, whose rows share pictures; InfoVQA and OCRBench as Parquet, one picture of InfoVQA large."""
    image = [b64(0), "0", b64(2), "0", b64(4), *(b64(i) for i in range(5, 12))]
    rows = [
        {"index": i, "question": f"Who is {i}?", "answer": "['I', 'me']", "image": one} for i, one in enumerate(image)
    ]
    tsv(folder / "docvqa" / "DocVQA_VAL.tsv", rows)
    large = {"bytes": encode_png(make_pixels(1, 90, 1200)), "path": None}
    info = [
        {"questionId": str(i), "question": "How many?", "answers": ["3"], "image": large if i == 1 else struct(i)}
        for i in range(3)
    ]
    parquet(folder / "infovqa" / "InfographicVQA" / "validation-00000-of-00001.parquet", info)
    read = {"answer": ["Exit"], "question": "what is written?", "question_type": "Regular", "dataset": "x"}
    parquet(folder / "ocrbench" / "test-00000-of-00001.parquet", [{"image": struct(i), **read} for i in range(3)])


def config(home: Path, data: str, folder: Path, *own: str) -> stage.Config:
    first = {"toolsrl_documents": "docvqa_rf", "ocrbench_turned": "ocrbench", "chartqapro_turned": "chartqapro"}[data]
    job = compose.load(
        "synth",
        ["+recipe=toolsrl", "scale=tiny", f"data={data}", f"data.tasks.{first}.generate.path={folder}", "tracker=none"]
        + [f"home={home}", "synth.workers=1", *own],
    )
    return compose.build(stage.Config, job)


def asked(artifact: Any, name: str) -> dict[str, dict[str, Any]]:
    table = pq.read_table(artifact.path / f"{name}.parquet").to_pylist()
    return {row["id"]: row for row in table}


def test_a_dataset_has_the_questions_and_turns_of_eval(tmp_path: Path) -> None:
    copies(tmp_path)
    made = stage.run(config(tmp_path / "home", "toolsrl_documents", tmp_path))
    assert made is not None
    found = asked(made, "answer-test")
    store = ImageStore(tmp_path / "store", as_given)
    for name, count in {"docvqa_rf": 12, "infovqa_rf": 3, "infovqa_res": 1}.items():
        samples = [*load(tmp_path, name, shipped()[name], store)]
        assert len(samples) == count
        for number, sample in enumerate(samples):
            row = found[f"{name}-test-{number:06d}"]
            truth = json.loads(row["extra_info"]["truth"])
            assert row["extra_info"]["question"] == sample.question and row["extra_info"]["answer"] == sample.answer
            assert (decode(row["images"][0]["bytes"], "") == store.full(sample.images[0])).all()
            assert truth["rule"] == "anls" and truth.get("transform", "none") == sample.truth["transform"]
    tools = asked(made, "tool-test")
    assert len(tools) == 15 and {row["extra_info"]["answer"] for row in tools.values()} == {"0", "1"}


def test_six_orientations_of_one_row(tmp_path: Path) -> None:
    copies(tmp_path)
    made = stage.run(config(tmp_path / "home", "ocrbench_turned", tmp_path))
    assert made is not None
    found = asked(made, "answer-test")
    assert len(found) == 18
    upright = decode(found["ocrbench-test-000001"]["images"][0]["bytes"], "")
    assert (decode(found["ocrbench_hflip-test-000001"]["images"][0]["bytes"], "") == upright[:, ::-1]).all()
    assert (decode(found["ocrbench_rot180-test-000001"]["images"][0]["bytes"], "") == upright[::-1, ::-1]).all()


def test_rows_are_read_in_any_order_and_bad_ones_are_counted(tmp_path: Path) -> None:
    copies(tmp_path)
    given: dict[str, Any] = {
        "benchmark": {"docvqa_rf": shipped()["docvqa_rf"]},
        "path": str(tmp_path),
        "name": "docvqa_rf",
    }
    first, third = (questions.generate(0, item, "test", **given).digest for item in (1, 3))
    assert [questions.generate(0, item, "test", **given).digest for item in (11, 3, 0, 1)][1::2] == [third, first]
    assert first == third == questions.generate(0, 0, "test", **given).digest  # all show the picture of row 0
    assert questions.generate(0, 2, "test", **given).digest != first
    with pytest.raises(InputError, match="has 12 questions of docvqa_rf, and question 12 is asked for"):
        questions.generate(0, 12, "test", **given)
    other = tmp_path / "other"
    rows = [
        {"index": i, "question": "Who?", "answer": "I", "image": one}
        for i, one in enumerate([b64(0), b64(1)[:-90], "7"])
    ]
    tsv(other / "docvqa" / "DocVQA_VAL.tsv", rows)
    for item in (1, 2):
        with pytest.raises(RowProblem, match=f"row {item} of"):
            questions.generate(0, item, "test", **given | {"path": str(other)})
    assert questions.generate(0, 0, "test", **given | {"path": str(other)}).answer == "I"
    with pytest.raises(InputError, match="no benchmark 'docvqa'"):
        questions.generate(0, 0, "test", **given | {"name": "docvqa"})


@each_case("data", ["toolsrl_documents", "ocrbench_turned", "chartqapro_turned"])
def test_without_a_folder_the_key_is_named(data: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Put a copy of"):
        stage.run(config(tmp_path / "home", data, tmp_path))
