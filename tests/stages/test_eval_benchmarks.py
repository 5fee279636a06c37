"""``vtcli eval benchmark=[…]`` with a tiny model, miniature copies, and a benchmark from outside the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import teacher_server
import tiny_model
from benchmark_copies import parquet, struct, tsv, vstar_rows
from judge_server import JudgeServer, Reaction, honest
from typer.testing import CliRunner

from stages import eval as stage
from vtcli.cli.main import app
from vtcli.config import compose
from vtcli.data.generators.film import Clip, encode
from vtcli.errors import ConfigError, InputError
from vtcli.schema import Scored
from vtcli.store import records
from vtcli.store.images import ImageStore

MINE = """
mine:
  title: Mine
  source: my shelf
  licence: mine
  rows: 2
  formats: [{files: mine.parquet, id: key, question: ask, answer: gold}]
  scores: [longest, exact]
  own: {longest: {_target_: shelf.longest, least: 1}}
  generation: {temperature: 1.0, group_size: 2}
  published: [{paper: Ours, table: "1", model: M, values: {all: 50.0}, scored: by hand}]
"""
SCORER = """
from vtcli.schema import Sample
from vtcli.signals.scorers.grade import Grade

def longest(sample: Sample, text: str, *, least: int) -> Grade:
    return Grade.of(len(text) >= least)
"""
WORDS = ["scale=tiny", "tracker=none", "prompt=compact", "agent.limits.max_tokens=420"]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own beside local copies of two benchmarks; the scorer is on the path of modules."""
    own, copies = tmp_path / "own", tmp_path / "copies"
    (own / "benchmark").mkdir(parents=True)
    (own / "benchmark" / "mine.yaml").write_text(MINE)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "shelf.py").write_text(SCORER)
    monkeypatch.syspath_prepend(tmp_path / "code")
    tsv(copies / "VStarBench.tsv", vstar_rows(4))
    rows = [{"key": f"k{n}", "ask": "Where is the tag?", "gold": "here", "image": struct(n)} for n in range(2)]
    parquet(copies / "mine" / "mine.parquet", rows)
    return tmp_path


def config(shelf: Path, *words: str) -> stage.Config:
    own = ["--config-dir", str(shelf / "own"), f"eval.benchmarks_in={shelf / 'copies'}"]
    given = [f"home={shelf / 'artifacts'}", f"eval.model={tiny_model.folder()}", *WORDS, *words]
    return compose.build(stage.Config, compose.load("eval", [*own, *given]))


def test_benchmarks_are_asked_scored_and_put_beside_printed_numbers(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stage.run(config(shelf, "benchmark=[vstar,mine]"))
    found = list(records.read(made.path / "trajectories.jsonl", Scored))
    tasks = [s.trajectory.sample.task for s in found]
    assert (tasks.count("vstar"), tasks.count("mine")) == (4, 4)  # two rollouts a question of mine
    assert {s.trajectory.sample.truth["rule"] for s in found} == {"choices", "longest"}
    figures = json.loads((made.path / "benchmarks.json").read_text())
    assert figures["vstar"]["questions"] == 4 and figures["vstar"]["expected"] == 191
    by_score = {(f["score"], f["figure"]): f["value"] for f in figures["mine"]["figures"]}
    answered = [bool(s.trajectory.answer) for s in found if s.trajectory.sample.task == "mine"]
    assert by_score["longest", "all"] == sum(answered) / 4
    assert made.manifest.parents == () and "answer.all.accuracy" in made.manifest.summary
    told = capsys.readouterr().err
    assert "eval: 8 rollouts (mine 2 × 2, vstar 4 × 1): at most " in told and "420 tokens each, 3360 in all" in told
    assert "eval 8/8: vstar 4/4" in told and "mine 4/4" in told
    assert "Benchmarks beside printed numbers" in told and "scored by rule longest / by hand" in told
    page = (made.path / "report.md").read_text()
    assert "CodeV, table 3: CodeV-7B-RL" in page and "T 1, 2 a question" in page
    assert "Benchmarks beside printed numbers" in (made.path / "report.html").read_text()
    again = ["benchmarks", "score", made.ref, "--home", str(shelf / "artifacts"), "--config-dir", str(shelf / "own")]
    done = CliRunner().invoke(app, [*again, "--out", str(shelf / "again.json")], catch_exceptions=False)
    assert done.exit_code == 0 and "Benchmarks beside printed numbers" in capsys.readouterr().err + done.stderr
    scored = json.loads((shelf / "again.json").read_text())
    values = [
        [(f["score"], f["figure"], f["value"], f["low"]) for f in r["mine"]["figures"]] for r in (scored, figures)
    ]
    assert values[0] == values[1] and scored.keys() == figures.keys()
    assert stage.run(config(shelf, "benchmark=[vstar,mine]")).ref == made.ref  # the same files: nothing is made again
    told = capsys.readouterr().err
    assert "eval: 8 rollouts" not in told and "Benchmarks beside printed numbers" in told and "report.html" in told
    assert stage.run(config(shelf, "benchmark=[vstar,mine]", "eval.label=BEFORE")).ref == made.ref  # a word of a table
    told = capsys.readouterr().err
    assert "eval: 8 rollouts" not in told and "BEFORE" in told.replace("label", "")
    later = stage.run(config(shelf, "benchmark=[vstar,mine]", f"eval.baseline={made.ref}", "eval.label=later"))
    page = (later.path / "report.md").read_text()
    assert "### Benchmarks beside the baseline" in page and "later, %" in page
    tsv(shelf / "copies" / "VStarBench.tsv", vstar_rows(3))
    assert stage.run(config(shelf, "benchmark=[vstar,mine]", "eval.max_samples=1")).ref != made.ref


def test_an_override_adds_the_judge_and_its_rows_stand_beside_its_figures(shelf: Path) -> None:
    with JudgeServer(honest) as server:
        judge = ["judge=openai", f"judge.url={server.url}", "judge.model=m", "+benchmark.vstar.judged=true"]
        made = stage.run(config(shelf, "benchmark=[vstar]", *judge))
    assert {s.trajectory.sample.truth["rule"] for s in records.read(made.path / "trajectories.jsonl", Scored)} == {
        "judge"
    }
    figures = json.loads((made.path / "benchmarks.json").read_text())["vstar"]["figures"]
    papers = {(f["score"], f["figure"]): {row["paper"] for row in f["published"]} for f in figures}
    assert (papers["choices", "macro"], papers["judged", "macro"]) == (set(), {"ToolsRL"})
    assert "CodeV" in papers["choices", "all"] and not papers["judged", "all"]


@pytest.mark.parametrize("variant", [(), pytest.param(("variant=code",), marks=pytest.mark.slow)])
def test_a_benchmark_is_scored_by_the_recipe_of_codev_where_answers_call_code(
    shelf: Path, variant: tuple[str, ...]
) -> None:
    """Its rows do not say whether there is something to search, which the recipe's reward must know."""
    code = "```python\nimage.crop((0, 0, 28, 28)).save('a.png')\nprint('a.png')\n```"
    texts = (f"<think>I look.</think><code>\n{code}\n</code>", "<think>It is red.</think><answer>A</answer>")

    def react(body: dict[str, Any], number: int) -> Reaction:
        return teacher_server.said(texts[sum(message["role"] == "assistant" for message in body["messages"])])

    with JudgeServer(react) as server:
        asked = ["+recipe=codev", *variant, "benchmark=[vstar]", "eval.policy=endpoint", "eval.endpoint.calls=text"]
        made = stage.run(config(shelf, *asked, f"eval.endpoint.url={server.url}", "eval.model=gpt-x"))
    found = list(records.read(made.path / "trajectories.jsonl", Scored))
    assert [len(s.trajectory.results) for s in found] == [1] * 4 and all(s.trajectory.answer for s in found)
    assert {s.verdict for s in found} == {None}  # a benchmark is scored, not rewarded
    assert json.loads((made.path / "benchmarks.json").read_text())["vstar"]["questions"] == 4


def test_videos_are_asked_as_uniform_frames_without_tools(shelf: Path) -> None:
    clip = Clip(np.stack([np.full((56, 84, 3), 20 * k, np.uint8) for k in range(10)]), 2)
    folder = shelf / "copies" / "vsi_bench"
    (folder / "scannet").mkdir(parents=True)
    (folder / "scannet" / "s0.mp4").write_bytes(encode(clip))
    row = {"dataset": "scannet", "scene_name": "s0", "question_type": "object_counting", "ground_truth": "4"}
    rows = [row | {"id": n, "question": f"How many chairs are near {n}?", "options": None} for n in range(2)]
    (folder / "test.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    asked = ["benchmark=[vsi_bench]", "env=pyvision_video", "eval.frames=4"]
    with pytest.raises(ConfigError, match=r"pyvision_video .*eval\.tools=none"):
        config(shelf, *asked)
    made = stage.run(config(shelf, *asked, "eval.tools=none"))
    for scored in records.read(made.path / "trajectories.jsonl", Scored):
        sample, images = scored.trajectory.sample, ImageStore(made.path / "images")
        assert sample.question.startswith("These are frames of a video.\nHow many chairs") and not sample.videos
        assert [int(images.full(ref)[0, 0, 0]) for ref in scored.trajectory.images] == [0, 60, 120, 180]
        assert sample.tools == ()
    page = (made.path / "report.md").read_text()
    assert "- frames of a video: 4\n" in page and "T 0, frames: 4, 1 a question" in page


def test_what_is_missing_is_one_error_before_a_model_is_loaded(shelf: Path) -> None:
    with pytest.raises(InputError, match=r"HR-Bench 4K: .*hr_bench_4k\.tsv"):
        stage.run(config(shelf, "benchmark=[hrbench_4k]"))
    with pytest.raises(ConfigError, match=r"eval\.data .*eval\.data=NAME:vN, or benchmark="):
        stage.run(config(shelf))
    with pytest.raises(ConfigError, match=r"got eval\.data=d:v1 and benchmark=\['vstar'\]"):
        stage.run(config(shelf, "benchmark=[vstar]", "eval.data=d:v1"))
    with pytest.raises(ConfigError, match=r"eval\.benchmarks_in "):
        stage.run(config(shelf, "benchmark=[vstar]", "eval.benchmarks_in=null"))
    with pytest.raises(ConfigError, match=r"benchmark .vstr.*.vstar."):
        config(shelf, "benchmark=[vstr]")


def test_the_commands_list_show_and_check(shelf: Path) -> None:
    own = ["--config-dir", str(shelf / "own")]
    run = CliRunner().invoke
    listed = run(app, ["benchmarks", "ls", *own], catch_exceptions=False).stdout
    assert [line.split("\t")[2] for line in listed.splitlines() if line.startswith("mine\t")] == ["longest exact"]
    assert "vsi_bench\t" in listed
    shown = run(app, ["benchmarks", "show", "mine", *own], catch_exceptions=False).stdout
    assert "_target_: shelf.longest" in shown
    good = run(app, ["benchmarks", "check", str(shelf / "copies"), "mine", *own], catch_exceptions=False)
    assert (good.exit_code, "mine" in good.stdout, "complete: 2 of 2 rows" in good.stdout) == (0, True, True)
    bad = run(app, ["benchmarks", "check", str(shelf / "copies"), *own], catch_exceptions=False)
    assert bad.exit_code == 1
    assert "NOT complete: 4 of 191 rows, version another" in bad.stdout and "no copy here" in bad.stdout
