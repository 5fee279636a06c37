"""The report in a real browser, from a disk: search, filters, keys, links; nothing that a model wrote runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_copies import shipped
from browser import opened, unreadable
from fakes import make_sample, make_scored, make_trajectory

from vtcli.benchmarks.results import BenchmarkFigure, BenchmarkResult, RunSetting
from vtcli.report import build, pages, published
from vtcli.report.content import Evaluation, ReportData
from vtcli.report.tables import HEADLINES
from vtcli.statistics.metrics import wilson
from vtcli.statistics.rows import make_row
from vtcli.store.images import ImageStore

EVIL = '</pre><script>alert("x")</script><img src="x.png" onerror=alert(1)>'
COUNT = 260


def written(folder: Path) -> Path:
    """A report of many trajectories: every third is right, every fifth calls nothing, number 200 holds a rare word."""
    store = ImageStore(folder / "images")
    found = []
    for i in range(COUNT):
        sample = make_sample(store, id=f"zoom test/{i:04d}", question=f"Number {i}? {EVIL}")
        call = ("image_zoom_in_tool", {"bbox_2d": [5, 5, 60, 60], "label": EVIL})
        said = f"<think>{EVIL}{' heliotrope' if i == 200 else ''}</think><answer>{i}</answer>"
        t = make_trajectory(sample, [said] if i % 5 == 0 else [call, said], store)
        found.append(
            make_scored(t, {"answer_correct": int(i % 3 == 0)}, {"answer": float(i % 3 == 0), "format": i / 100})
        )
    series = (Evaluation("m", "m:v1", tuple(make_row(s, None) for s in found)),)
    return build.build(folder, ReportData("many", {}, [], "", series, shown=found), store)[0]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    patch = pytest.MonkeyPatch()
    patch.setattr(build, "MAX_BYTES", 50_000)
    patch.setattr(pages, "PAGE", 20)
    try:
        return written(tmp_path_factory.mktemp("report"))
    finally:
        patch.undo()


def shown(page: Any, expected: str) -> None:
    page.locator(".filters output", has_text=expected).wait_for()


@pytest.mark.slow
def test_many_trajectories_by_search_filter_and_key(report: Path, chromium: Any) -> None:
    with opened(chromium, report.as_uri()) as (page, problems):
        shown(page, "260 of 260 shown")
        assert page.locator("details.card").count() <= 200  # the document holds a window of them
        page.keyboard.press("j")
        card = page.locator("details.card").first
        card.get_by_text("zoom test/0000-answer-0").wait_for()  # its page was loaded
        assert card.locator("script, img").count() == 0
        assert page.evaluate("decodeURIComponent(location.hash)") == "#zoom test/0000-answer-0"
        page.keyboard.press("j")
        page.locator("details.card").nth(1).locator("svg.picture image").nth(2).wait_for()
        page.wait_for_load_state("networkidle")
        page.keyboard.press("/")
        page.keyboard.type("HELIOTROPE number")  # a word of the policy, one of the question
        shown(page, "1 of 260 shown")
        page.get_by_label("search").fill("")
        page.get_by_label("outcome").select_option("right")
        shown(page, "87 of 260 shown")
        page.get_by_label("operation").select_option("none")
        shown(page, "18 of 260 shown")
        page.get_by_label("outcome").select_option("")
        page.get_by_label("operation").select_option("zoom in")
        page.get_by_label("reward part").select_option("format")
        page.get_by_label("from").fill("2.5")
        shown(page, "8 of 260 shown")  # 251 to 259 without 255
        page.get_by_label("order").select_option("most")
        first = page.locator("details.card").first
        first.get_by_text("Number 258?").first.wait_for()  # right, and of those the most for its format
        assert not problems


@pytest.mark.wide
def test_a_link_opens_its_trajectory(report: Path, chromium: Any) -> None:
    with opened(chromium, f"{report.as_uri()}#zoom%20test/0231-answer-0", width=390, scheme="dark") as (page, problems):
        card = page.locator("details.card[open]")
        card.get_by_text("Number 231?").first.wait_for()
        card.locator("svg.picture image").first.wait_for()
        assert card.is_visible()
        page.get_by_role("button", name="Show earlier ones").click()
        page.locator("details.card", has_text="Number 131?").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert not problems


@pytest.mark.wide
def test_a_page_also_fills_cards_that_are_listed_later(report: Path, chromium: Any) -> None:
    with opened(chromium, f"{report.as_uri()}#zoom%20test/0231-answer-0") as (page, problems):
        page.locator("details.card[open] svg.picture").first.wait_for()  # with 220 to 239, of which some are not listed
        page.get_by_role("button", name="Show earlier ones").click()
        earlier = page.locator("details.card", has_text="Number 225?")
        earlier.locator("summary").click()
        earlier.locator("svg.picture image").first.wait_for(timeout=10_000)
        assert not problems


@pytest.mark.wide
def test_one_file_needs_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chromium: Any) -> None:
    monkeypatch.setitem(globals(), "COUNT", 12)
    page_file = written(tmp_path / "made").rename(tmp_path / "alone.html")
    with opened(chromium, page_file.as_uri()) as (page, problems):
        shown(page, "12 of 12 shown")
        page.get_by_label("search").fill("Number 7?")
        shown(page, "1 of 12 shown")
        page.keyboard.press("Escape")
        page.locator("details.card[open]", has_text="Number 7?").locator("svg.picture use").first.wait_for()
        tables = "[...document.querySelectorAll('.scroll')].slice(0, 2).map((e) => e.scrollWidth <= e.clientWidth)"
        assert page.evaluate(tables) == [True, True]
        assert not problems


@pytest.mark.wide
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_of_the_first_tables_is_behind_a_scroll_bar(tmp_path: Path, chromium: Any, scheme: str) -> None:
    """With every column, long names of models, and the sentences beside printed numbers."""
    store = ImageStore(tmp_path / "images")
    found = []
    for i in range(6):
        sample = make_sample(store, id=f"zoom/{i}", form="tool" if i % 2 else "answer")
        t = make_trajectory(sample, [("image_zoom_in_tool", {"bbox_2d": [5, 5, 60, 60], "label": ""}), "K"], store)
        signals = {"answer_correct": i % 3, "answer_score": 0.5, "format_ok": True, "faithful": i % 2 == 0}
        found.append(make_scored(t, signals, {"tool_global": 0.5, "tool_answer": i / 10}))
    rows = tuple(make_row(one, None) for one in found)
    names = [f"an-organisation/Qwen2.5-VL-7B-Instruct-with-tools-{i}:v{i}" for i in range(3)]
    setting = RunSetting(names[0], "oracle", "temperature 1.0, top_p 1.0, 4 samples a question")
    figures = tuple(
        BenchmarkFigure("chartqapro", score, "all", wilson(20, 60), 60) for score in ("relaxed_number", "judged")
    )
    result = BenchmarkResult("chartqapro", "ChartQAPro", figures, 60, 1948, 0, 0, 0, 0, setting)
    printed = published.table({"chartqapro": result}, shipped())
    assert printed is not None and any(len(cell.text) > 120 for cell in printed.lines[0])
    for count in (1, 3):  # with one model the printed numbers are the second table
        series = tuple(Evaluation(name, name, rows) for name in names[:count])
        data = ReportData("tables", {}, [], "", series, extra=(printed,))
        with opened(chromium, build.build(tmp_path / str(count), data, store)[0].as_uri(), scheme=scheme) as (page, _):
            every = page.evaluate("[...document.querySelectorAll('.scroll')].map((e) => [e.scrollWidth, e.innerText])")
            tables = every[: 2 if count == 1 else 3]
            assert all(title in tables[0][1] for title, _, _ in HEADLINES)
            assert "what differs" in tables[-1][1]
            assert not [text for width, text in tables if width > 1352]
            assert not unreadable(page)
