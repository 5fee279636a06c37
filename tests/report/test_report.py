"""The report: every number with its interval, nothing that a model wrote is markup, nothing is fetched."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case
from fakes import make_pixels, make_sample, make_scored, make_trajectory

from vtcli.report import build, cells, content, folder, pages, plots, printing, tables
from vtcli.report.content import Curve, Evaluation, ReportData
from vtcli.schema import Scored, Stop
from vtcli.statistics.metrics import Comparison, Estimate
from vtcli.statistics.rows import Row, make_row
from vtcli.store.images import ImageStore

EVIL = '</pre><script>alert("x")</script><img src="http://evil.example/a.png" onerror=alert(1)>&lt;'


def scored(store: ImageStore, i: int, form: str = "answer", right: bool = True) -> Scored:
    sample = make_sample(store, id=f"zoom-test-{i:06d}", form=form, question=f"Where? {EVIL}", answer="K")
    call = ("image_zoom_in_tool", {"bbox_2d": [5, 5, 60 + i, 60], "label": EVIL})
    bad = ("image_zoom_in_tool", {"bbox_2d": [50, 50, 10, 10]})
    t = make_trajectory(sample, [call, bad, f"<think>{EVIL}</think><answer>{'K' if right else EVIL}</answer>"], store)
    parts = {"answer": float(right), "format": 0.0}
    if form == "tool":
        parts = {"tool_global": 0.5, "tool_answer": float(right), "format": 0.0}
    return make_scored(t, {"answer_correct": int(right), "answer_score": float(right), "format_ok": True}, parts)


@pytest.fixture
def data(tmp_path: Path) -> tuple[ReportData, ImageStore]:
    store = ImageStore(tmp_path / "images")
    found = [scored(store, i, form, right=i % 3 > 0) for i in range(6) for form in ("answer", "tool")]
    rows = tuple(make_row(s, 0.5) for s in found)
    worse = tuple(Row(r.sample, r.task, r.form, 0, "answered", accuracy=0.0, calls=0.0, tool_reward=0.1) for r in rows)
    steps = tuple(range(20))
    curves = (content.Curve("reward", steps, tuple(np.linspace(0, 1, 20))), content.Curve("entropy", (3,), (1.5,)))
    return ReportData(
        title=f"model {EVIL}",
        facts={"model": "m:v2", EVIL: EVIL},
        commands=["vtcli eval data=d model=m"],
        lineage="report:v1\n└─ model m:v2",
        series=(Evaluation("before", "m:v1", worse), Evaluation(f"after {EVIL}", "m:v2", rows)),
        training=content.Training(curves, (content.CurvePhase("tools", 0), content.CurvePhase("answers", 10))),
        shown=tuple(found[:5]),
    ), store


def page_of(data: ReportData, store: ImageStore) -> str:
    return build.html(data, tables.all_tables(data.series, data.seed), build.inline(data.shown, store))


def called(path: Path, name: str) -> Any:
    """What a script beside the page hands to the viewer's function."""
    text = path.read_text()
    assert text.startswith(f"vtcli.{name}(")
    return json.loads(f"[{text[len(name) + 7 : -2]}]")


class Page(HTMLParser):
    """Collects what a browser would run or fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]


def test_page_is_self_contained_and_escapes_everything(data: tuple[ReportData, ImageStore], tmp_path: Path) -> None:
    html_path, md_path = build.build(tmp_path, *data)
    text = html_path.read_text()
    page = Page(text)
    assert page.tags.count("script") == 1
    assert page.tags.count("img") == 0
    assert page.handlers == []
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert text.count("<script>") == 1
    assert "alert(&#34;x&#34;)" in text  # shown as text
    assert not re.search(r"url\(|@import|https?://", re.sub(r"http://evil\.example", "", text))
    assert md_path.read_text().startswith("# model")
    assert html_path.stat().st_size < 200_000


def test_page_shows_calls_on_their_image_and_truth(data: tuple[ReportData, ImageStore]) -> None:
    text = page_of(*data)
    # Image 0 is 112 px, three times as large on the page; the call's box in view pixels; the truth's 20..60, 30..70.
    assert 'viewBox="0 0 112 112" width="336" height="336"' in text
    assert '<g class="call">' in text
    assert '<rect x="5.00" y="5.00" width="55.00" height="55.00"/>' in text
    assert '<g class="call failed">' in text  # the inverted box was refused, and is drawn dashed
    assert '<rect x="20.00" y="30.00" width="40.00" height="40.00"/>' in text
    assert "came back: image 1" in text
    assert text.count("<details class=") == 5
    assert '<a href="#zoom-test-000000-answer-0" class="mono">' in text
    assert "tool global" in text
    assert "expected" in text


def test_a_page_that_grows_too_large_has_its_trajectories_beside_it(
    data: tuple[ReportData, ImageStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, store = data
    monkeypatch.setattr(build, "MAX_BYTES", 60_000)
    monkeypatch.setattr(pages, "PAGE", 2)
    text = build.build(tmp_path / "out", report, store)[0].read_text()
    assert "<details" not in text
    assert '<script defer src="pages/list.js"></script>' in text
    assert "script-src &#39;sha256-" in text
    size, entries = called(tmp_path / "out" / "pages" / "list.js", "list")
    assert (size, len(entries)) == (2, 5)
    assert entries[0]["id"] == report.shown[0].trajectory.id
    assert {key: entries[0][key] for key in ("outcome", "operations", "parts", "calls")} == {
        "outcome": "wrong",
        "operations": ["zoom in"],
        "parts": {"answer": 0.0, "format": 0.0},
        "calls": 2,
    }
    assert len(called(tmp_path / "out" / "pages" / "texts.js", "texts")[0]) == 5
    at, bodies = called(tmp_path / "out" / "pages" / "2.js", "cards")
    assert (at, len(bodies)) == (4, 1)
    page = Page("".join(bodies))
    assert not {"script", "img"} & set(page.tags)
    pictures = [link for link in page.links if link.startswith("images/")]
    assert pictures
    assert all((tmp_path / "out" / link).is_file() for link in pictures)
    assert not page.handlers


def test_a_sample_of_the_trajectories_is_called_one(data: tuple[ReportData, ImageStore]) -> None:
    report, store = data
    assert "A seeded sample of the 12 trajectories" in page_of(replace(report, measured=12), store)
    assert "A seeded sample" not in page_of(replace(report, measured=5), store)


def test_report_of_one_model_without_training_or_trajectories(tmp_path: Path) -> None:
    rows = (Row("a", "zoom", "answer", 0, "answered", accuracy=1.0), Row("b", "zoom", "answer", 0, "broken"))
    report = ReportData("t", {}, [], "", (Evaluation("m", "m:v1", rows),))
    text = page_of(report, ImageStore(tmp_path))
    assert "Training" not in text
    assert "Paired differences" not in text
    assert "<script" not in text
    assert "Before and after" in text


def test_large_pictures_are_scaled_down(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    sample = make_sample(store, pixels=make_pixels(0, 1400, 700))
    found = make_scored(make_trajectory(sample, ["<answer>K</answer>"], store), {}, None)
    text = page_of(ReportData("t", {}, [], "", (), shown=(found,)), store)
    assert "data:image/jpeg;base64," in text
    assert 'viewBox="0 0 1400 700" width="336" height="168"' in text
    assert "no verdict" in text


def test_cells_say_interval_denominator_and_method() -> None:
    cell = cells.estimate_cell(Estimate(0.5, 0.25, 0.75, 10, "Wilson", None))
    assert (cell.text, cell.detail, cell.hint) == ("0.500", "[0.250, 0.750]", "n = 10 questions, Wilson")
    cell = cells.estimate_cell(Estimate(123.456, None, None, 1, "BCa", 7))
    assert (cell.text, cell.detail, cell.hint) == ("123.5", "", "n = 1 questions, BCa, seed 7")
    found = Comparison(0.25, 0.125, 0.5, 8, "exact McNemar", None, 0.0004, 1, 2)
    cell = cells.comparison_cell(found)
    assert (cell.text, cell.detail) == ("+0.250", "[+0.125, +0.500]\np < 0.001")
    assert "n = 8 pairs, 3 without a partner" in cell.hint
    assert cells.comparison_cell(replace(found, low=None, high=None)).detail == "p < 0.001"
    assert cells.estimate_cell(None).text == "–"


def test_differences_go_step_by_step_and_over_all() -> None:
    series = [
        Evaluation(
            name, "m", tuple(Row(str(i), "zoom", "answer", 0, "answered", accuracy=float(i < k)) for i in range(8))
        )
        for name, k in (("a", 2), ("b", 4), ("c", 8))
    ]
    table = tables.differences(series, 0)
    assert table is not None
    assert [line[0].text for line in table.lines] == ["b − a", "c − b", "c − a"]
    assert [line[1].text for line in table.lines] == ["+0.250", "+0.500", "+0.750"]
    assert tables.differences(series[:1], 0) is None


def test_right_and_faithful_over_fewer_questions_is_said() -> None:
    """Two zoom questions with evidence, one of them right and faithful, and two counts that have none and are wrong."""
    rows = [
        Row(str(i), task, "answer", 0, "answered", accuracy=float(i == 0), faithful=faithful)
        for i, (task, faithful) in enumerate([("zoom", 1.0), ("zoom", 0.0), ("count", None), ("count", None)])
    ]
    table = tables.progress([Evaluation("m", "m", tuple(rows))], 0)
    assert table is not None and table.columns == ("model", "accuracy", "right and faithful")
    assert [cell.text for cell in table.lines[0]] == ["m", "0.250", "0.500"]
    assert "so it may exceed accuracy" in table.note
    plain = tables.progress([Evaluation("m", "m", tuple(replace(row, faithful=None) for row in rows))], 0)
    assert plain is not None and "faithful" not in plain.note


def test_tool_shares_have_their_denominator() -> None:
    rows = (
        Row(
            "a",
            "zoom",
            "answer",
            0,
            "answered",
            calls=4.0,
            tools={"image_zoom_in_tool": 3, "(unreadable)": 1},
            failed=1,
        ),
    )
    table = tables.shares([Evaluation("m", "m", rows)], "tools", 0)
    assert table is not None
    assert table.columns == ("model", "question", "calls", "failed", "zoom in", "(unreadable)")
    assert [c.text for c in table.lines[0]] == ["m", "plain", "4", "25%", "75%", "25%"]
    assert table.lines[0][4].hint == "3 of 4"


def test_markdown_and_console_print_labels_as_text() -> None:
    from rich.console import Console

    table = printing.Table("T", "n", ("a|b", "c"), ((printing.Cell("[red]x|y"), printing.Cell("1", "[0, 2]")),))
    assert printing.to_markdown(table).splitlines()[-3:] == [
        "| a\\|b | c |",
        "| --- | --: |",
        "| [red]x\\|y | 1 [0, 2] |",
    ]
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(printing.to_console(table))
    assert "[red]x|y" in console.export_text()


def test_ticks_are_round_and_span() -> None:
    assert plots.ticks(0.0, 1.0) == pytest.approx([0, 0.5, 1.0]) or plots.ticks(0, 1) == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1]
    )
    for low, high in ((0.03, 0.97), (-5, 12), (1e-6, 3e-5), (2.0, 2.0)):
        marks = plots.ticks(low, high)
        assert marks[0] <= low + 1e-12
        assert marks[-1] >= high - 1e-12
        assert 2 <= len(marks) <= 8


def test_smoothing_by_hand() -> None:
    assert plots.smooth([1, 3, 5, 7], 2) == [1, 2, 4, 6]


def test_read_curves_finds_phases_and_leaves_gaps() -> None:
    log = [
        {"step": 0, "phase": "tools", "reward": 0.1, "validation/reward": 2.0, "entropy": 4.0, "other": 1},
        {"step": 1, "phase": "tools", "reward": float("nan"), "entropy": None},
        {"step": 2, "phase": "answers", "reward": 0.3, "advantage/p50": -0.5, "reward/format": 0.0},
        {"reward": 9.0},
    ]
    found = content.read_training(log)
    assert found.curves == (
        content.Curve("reward", (0, 2), (0.1, 0.3)),
        content.Curve("validation/reward", (0,), (2.0,)),
        content.Curve("entropy", (0,), (4.0,)),
        content.Curve("advantage/p50", (2,), (-0.5,)),
        content.Curve("reward/format", (2,), (0.0,)),
    )
    assert found.phases == (content.CurvePhase("tools", 0), content.CurvePhase("answers", 2))


def test_outcome_knows_no_verdict_from_wrong() -> None:
    t = make_trajectory(make_sample(), ["<answer>K</answer>"])
    assert content.outcome(make_scored(t, {"answer_correct": 1})) == "right"
    assert content.outcome(make_scored(t, {"answer_correct": 0})) == "wrong"
    assert content.outcome(make_scored(t, {})) == "unmeasured"
    broken = make_trajectory(make_sample(), [], stop=Stop.BROKEN)
    assert content.outcome(make_scored(broken, {"answer_correct": 0})) == "broken"
    tool = make_trajectory(make_sample(form="tool"), ["<answer>1</answer>"])
    assert content.outcome(make_scored(tool, {}, {"tool_global": 1.0, "tool_answer": 0.4})) == "wrong"


def test_choose_spreads_over_outcomes_and_is_seeded() -> None:
    found = []
    for i in range(40):
        t = make_trajectory(make_sample(id=f"s{i}", task="zoom" if i % 2 else "count"), ["<answer>K</answer>"])
        found.append(make_scored(t, {"answer_correct": int(i % 10 == 0 or i == 1)}))  # right ones are rare
    picked = content.choose(found, 8, seed=3)
    kinds = [(s.trajectory.sample.task, content.outcome(s)) for s in picked]
    assert len(picked) == 8
    assert {k: kinds.count(k) for k in set(kinds)}[("zoom", "right")] == 1
    assert kinds.count(("count", "right")) >= 2
    assert picked == content.choose(found, 8, seed=3)
    assert len(content.choose(found, 100, seed=0)) == 40
    assert content.choose(found, None, seed=0) == tuple(found)


def test_an_image_that_a_run_did_not_keep_is_said_to_be_gone(
    data: tuple[ReportData, ImageStore], tmp_path: Path
) -> None:
    report, store = data
    gone = report.shown[0].trajectory.images[1]
    before = page_of(report, store).count('<svg class="picture"')
    store.path(gone.view).unlink()
    (store.root / "sampled.json").write_text('{"trajectories": ["t1"]}')
    page = page_of(report, ImageStore(store.root))
    assert "The run did not keep this image." in page
    assert page.count('<svg class="picture"') == before
    assert folder.image_notes(tmp_path) == (
        "Of the trajectories that the model was trained on, it holds the images of 1 (rl.keep_images).",
    )
    assert folder.image_notes(tmp_path / "other") == ()


@each_case("values", [(0.7 + 0.2 + 0.1, 1.0), (0.0, 5e-324), (-1e15, -1e15 + 0.125)])
def test_a_curve_that_is_flat_but_for_rounding_is_drawn(values: tuple[float, float]) -> None:
    assert values[0] != values[1]
    assert "<svg" in str(plots.curve(Curve("advantage/std", (1, 2), values), (), 2))


def test_long_questions_count_towards_the_size_of_one_page(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    sample = make_sample(store, id="q", question="word " * 6000)
    found = [make_scored(make_trajectory(sample, ["<answer>K</answer>"], store), {}) for _ in range(60)]
    assert build.inline(found[:2], store) is not None
    assert build.inline(found, store) is None
