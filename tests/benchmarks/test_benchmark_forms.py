"""Every public form of every benchmark, from a folder as published to figures; and damaged copies of each."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
from benchmark_copies import png, shipped
from benchmark_rows import MINIATURES, Miniature
from cases import each_case
from fakes import make_trajectory
from odd_values import ODD, odd_versions

from vtcli.benchmarks import files, questions, results
from vtcli.benchmarks.benchmark import Generation, generation_of
from vtcli.benchmarks.samples import RowChoice, check, load
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.errors import InputError
from vtcli.schema import Sample, Scored, Signals
from vtcli.signals import code, orientation
from vtcli.signals.code import required
from vtcli.signals.scorers import letters
from vtcli.store.images import ImageStore

SETTING = results.RunSetting("policy:v1", "oracle", "greedy")
OF_OTHERS = [
    replace(mini, name=name)
    for name, one in shipped().items()
    for mini in MINIATURES
    if one.folder == mini.name and not any(m.name == name for m in MINIATURES) and name != "infovqa_res"
]
EVERY = [*MINIATURES, *OF_OTHERS]


def loaded(folder: Path, mini: Miniature, **changes: object) -> list[Sample]:
    benchmark = replace(shipped()[mini.name], **changes)  # pyright: ignore[reportArgumentType]
    place = folder / (benchmark.folder or mini.name)
    mini.write(place)
    return list(load(folder, mini.name, benchmark, ImageStore(folder / "store")))


def test_a_set_as_the_hubs_own_command_lays_it_down_is_read(tmp_path: Path) -> None:
    """``hf download`` keeps the set's folders; of many, ``data`` is the one. An error has the command."""
    benchmark = shipped()["textvqa"]
    with pytest.raises(InputError, match=rf"vtcli benchmarks get textvqa --into {tmp_path}"):
        list(load(tmp_path, "textvqa", benchmark, ImageStore(tmp_path / "store")))
    mini = next(m for m in MINIATURES if m.name == "textvqa" and m.path.endswith(".parquet"))
    mini.write(tmp_path / "textvqa" / "data")
    assert list(load(tmp_path, "textvqa", benchmark, ImageStore(tmp_path / "store")))


def test_every_form_of_every_benchmark_has_a_miniature() -> None:
    """infovqa_res and orientation have tests of their own: they ask large pictures, and pictures without questions."""
    missing = [
        (name, form.files)
        for name, one in shipped().items()
        for form in one.formats
        if name not in ("infovqa_res", "orientation")
        and not any(m.name == name and (fnmatch(m.path, form.files) or m.path == form.files) for m in EVERY)
    ]
    assert not missing


def test_lines_of_json_end_where_the_file_says(tmp_path: Path) -> None:
    """A text may hold a line separator of Unicode; a file that holds no rows is one error."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "One\u2028two?"}, ensure_ascii=False) + "\n")
    assert [row["question"] for row in files.rows(path)] == ["One\u2028two?"]
    (tmp_path / "rows.json").write_text("5")
    with pytest.raises(InputError, match=r"rows\.json cannot be read as json: expected a list of rows"):
        list(files.rows(tmp_path / "rows.json"))


@each_case("mini", MINIATURES, ids=str)
def test_rows_with_odd_values_are_asked_or_named(
    mini: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, benchmark = tmp_path / mini.name, shipped()[mini.name]
    first, *others = files.rows(mini.write(folder))
    odd_ones = ["", "[1, 2", "x", "1e400", *map(str, ODD)] if mini.path.endswith((".tsv", ".csv")) else ODD
    for odd in odd_versions(dict(first), random.Random(str(mini)), 25, odd_ones):
        monkeypatch.setattr(files, "rows", lambda path, odd=odd: iter([odd, *others]))
        named = [
            said for said in check(tmp_path, mini.name, benchmark).problems if "the whole benchmark has" not in said
        ]
        try:
            list(load(tmp_path, mini.name, benchmark, ImageStore(tmp_path / "store")))
        except InputError:
            assert named, "vtcli benchmarks check has not told it"


@each_case("mini", EVERY, ids=str)
def test_a_form_as_published_is_asked_and_scored(mini: Miniature, tmp_path: Path) -> None:
    benchmark = shipped()[mini.name]
    samples = loaded(tmp_path, mini)
    first = samples[0]
    assert mini.asked in first.question and "{question}" not in first.question
    assert first.answer == mini.answer and len(first.truth.get("choices") or ()) == mini.options
    assert bool(first.images) == bool(benchmark.formats[0].images)
    options = first.truth.get("choices") or ()
    assert all(f"{letters.letter(k)}. {text}" in first.question for k, text in enumerate(options))
    for name in benchmark.scores:
        scorer = benchmark.scorer(name)
        assert scorer(first, mini.right).score == mini.score, name
        assert scorer(first, mini.wrong).score < 0.5
    alike = [sample for sample in samples if sample.answer == mini.answer]  # CharXiv asks others, too
    found = [
        Scored(make_trajectory(sample, [f"<answer>{reply}</answer>"]), Signals({}), None)
        for sample, reply in zip(alike, [mini.right, mini.wrong, mini.right], strict=False)
    ]
    result = results.result(mini.name, benchmark, found, SETTING, seed=0)
    assert result is not None and result.questions == len(found)
    figures = {f.name: f.estimate.value for f in result.figures if f.score == benchmark.scores[0]}
    assert figures["all"] == pytest.approx(sum(k % 2 == 0 for k in range(len(found))) / len(found))
    assert "strict" in figures or mini.name != "wemath"


@each_case("mini", MINIATURES, ids=str)
def test_a_check_names_a_lost_picture_and_a_repeated_id(mini: Miniature, tmp_path: Path) -> None:
    benchmark = replace(shipped()[mini.name], rows=None)
    form = next(f for f in benchmark.formats if fnmatch(mini.path, f.files) or mini.path == f.files)
    whole = mini.write(tmp_path / mini.name)
    benchmark = replace(benchmark, formats=(replace(form, md5=None, sha256=None),))
    found = check(tmp_path, mini.name, benchmark)
    if form.video:
        assert any("no video" in problem for problem in found.problems)
    else:
        assert found.complete and len(found.sha256) == 64, found.problems
    if mini.pictures:
        (tmp_path / mini.name / mini.pictures[0]).unlink()
        lost = check(tmp_path, mini.name, benchmark).problems
        assert lost and all("image" in problem for problem in lost)
    if len(mini.rows) > 1 and not form.id.startswith("__") and form.reads is None:
        whole.unlink()
        replace(mini, rows=[{**row, form.id: mini.rows[0][form.id]} for row in mini.rows]).write(tmp_path / mini.name)
        assert any(" times" in problem for problem in check(tmp_path, mini.name, benchmark).problems)


def test_three_repositories_of_visualprobe_are_one_benchmark(tmp_path: Path) -> None:
    mini = next(m for m in MINIATURES if m.name == "visualprobe")
    mini.write(tmp_path / "visualprobe")
    for name in ("Easy", "Medium"):
        shutil.copytree(
            tmp_path / "visualprobe/VisualProbe_Hard/data", tmp_path / f"visualprobe/VisualProbe_{name}/data"
        )
        rows = [{**row, "images": ["data/1.jpg"]} for row in mini.rows]
        replace(mini, path=f"VisualProbe_{name}/val.json", rows=rows, pictures=()).write(tmp_path / "visualprobe")
    samples = list(load(tmp_path, "visualprobe", shipped()["visualprobe"], ImageStore(tmp_path / "store")))
    assert [s.truth["difficulty"] for s in samples] == ["easy"] * 2 + ["hard"] * 2 + ["medium"] * 2
    found = [
        Scored(make_trajectory(s, ["<answer>Exit</answer>"] if i < 2 else ["<answer>?</answer>"]), Signals({}), None)
        for i, s in enumerate(samples)
    ]
    result = results.result("visualprobe", shipped()["visualprobe"], found, SETTING, seed=0)
    assert result is not None
    assert {f.name: f.estimate.value for f in result.figures} == pytest.approx(
        {"all": 1 / 3, "easy": 1, "hard": 0, "medium": 0, "macro": 1 / 3}
    )


def test_charxiv_asks_four_questions_of_a_chart(tmp_path: Path) -> None:
    mini = next(m for m in MINIATURES if m.name == "charxiv_descriptive")
    samples = loaded(tmp_path, mini)
    assert [s.answer for s in samples] == ["Exit", "3", "1 by 2", "0"] * 2
    assert [s.truth["kind"] for s in samples[:4]] == [
        "information extraction",
        "counting",
        "pattern recognition",
        "information extraction",
    ]
    assert samples[2].question.startswith("What is the layout of the subplots?")
    assert len({s.id for s in samples}) == 8 and len({s.truth["chart"] for s in samples}) == 2


def test_the_orientation_of_a_picture_is_asked(tmp_path: Path) -> None:
    """CodeVision's diagnostic: each turn is drawn from a picture's name and the seed, and is the answer."""
    (tmp_path / "orientation").mkdir()
    for k in range(30):
        (tmp_path / "orientation" / f"photo{k}.{('png', 'jpg', 'webp')[k % 3]}").write_bytes(png(k))
    benchmark = shipped()["orientation"]
    samples = list(load(tmp_path, "orientation", benchmark, ImageStore(tmp_path / "store")))
    assert len(samples) == 30 and len({s.answer for s in samples}) == 5
    turned = {"rot90": "rotated by 90 degrees clockwise", "hflip": "flipped horizontally"}
    assert all(s.answer == turned.get(str(s.truth["transform"]), s.answer) for s in samples)
    right = letters.letter(list(samples[0].truth["choices"]).index(samples[0].answer))
    assert benchmark.scorer("choices")(samples[0], right).correct == 1
    assert samples[0].question.count("\n") == 6 and "E. flipped vertically" in samples[0].question
    other = list(load(tmp_path, "orientation", benchmark, ImageStore(tmp_path / "store"), RowChoice(seed=1)))
    assert [s.answer for s in other] != [s.answer for s in samples]
    for seed, asked in ((0, samples), (1, other)):  # a dataset of it has the same questions
        given = {"benchmark": {"orientation": benchmark}, "path": str(tmp_path), "name": "orientation"}
        items = [questions.generate(seed, number, "train", **given) for number in range(30)]
        assert [(i.question, i.answer, i.truth["transform"]) for i in items] == [
            (s.question, s.answer, s.truth["transform"]) for s in asked
        ]


def test_a_column_that_a_form_reads_is_named(tmp_path: Path) -> None:
    mini = next(m for m in MINIATURES if m.name == "mvtoolbench")
    bad = replace(mini, name="wemath", path="testmini-0.parquet")
    with pytest.raises(InputError, match=r"has no column 'option'; its columns are images, prompt"):
        loaded(tmp_path, bad)


def test_the_turns_of_mvtoolbench_are_names_of_its_own(tmp_path: Path) -> None:
    """They head its figures. No signal takes rotate_90, or a list of operations, for one of our transforms."""
    mini = next(m for m in MINIATURES if m.name == "mvtoolbench")
    (sample, _) = loaded(tmp_path, mini)
    played = make_trajectory(sample, ["<answer>Exit</answer>"])
    for measure in (code.measure, orientation.measure):
        assert asyncio.run(measure(played))
    assert required(sample.truth) is None
    found = results.result(
        "mvtoolbench", shipped()["mvtoolbench"], [Scored(played, Signals({}), None)], SETTING, seed=0
    )
    assert found is not None and "rotate_90" in {figure.name for figure in found.figures}


def test_a_recipes_sampling_comes_before_the_benchmarks() -> None:
    """PyVision-RL, section 4: T 0.01 and avg@32 for V*, T 0.5 with top-k 20 for the others."""
    job = compose.load("eval", ["+recipe=pyvision_image", "benchmark=[vstar,hrbench_4k]", "eval.model=none"])
    by_recipe = convert(job.values["eval"]["generation"], dict[str, Generation], "eval.generation")
    chosen = {name: generation_of(name, shipped(), by_recipe) for name in ("vstar", "hrbench_4k")}
    assert chosen["vstar"] == Generation(temperature=0.01, group_size=32)
    assert chosen["hrbench_4k"] == Generation(temperature=0.5, top_k=20)
    own = {"vstar": replace(shipped()["vstar"], generation=Generation(top_p=0.9))}
    assert generation_of("vstar", own, {}) == Generation(top_p=0.9)
    assert generation_of("zoom", own, by_recipe) == generation_of(None, own, by_recipe) == Generation()


def test_pyvision_video_is_asked_at_its_own_temperature() -> None:
    """Section 4: "PyVision-Video uses a temperature of 0.01"; top-k 20 is said of PyVision-Image alone."""
    job = compose.load("eval", ["+recipe=pyvision_video", "benchmark=[vsi_bench]", "eval.model=none", "scale=paper"])
    by_recipe = convert(job.values["eval"]["generation"], dict[str, Generation], "eval.generation")
    assert generation_of("vsi_bench", shipped(), by_recipe) == Generation(temperature=0.01, top_k=None)
    assert job.values["eval"]["agent"]["sampling"]["top_k"] == 0  # all tokens
