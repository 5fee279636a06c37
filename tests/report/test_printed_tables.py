"""Tables on a terminal of any width: they wrap, and nothing is cut off; without a terminal they are plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from vtcli.cli import doctor
from vtcli.engines.openai.ledger import Budget, Price, TokenUsage
from vtcli.engines.teachers.distil import Distillation
from vtcli.engines.teachers.estimate import CostEstimate
from vtcli.report import accounts, plans, tables
from vtcli.report.content import Evaluation
from vtcli.report.printing import Cell, Table, print_all, print_list
from vtcli.runbook import cost
from vtcli.statistics.rows import Row

ROOT = Path(__file__).parents[2]


def quickstart() -> list[Table]:
    """The models of ``make quickstart`` with the three measures that it prints."""
    series = quickstart_series()
    found = tables.progress(series, 0, tables.MAIN), tables.differences(series, 0, tables.MAIN)
    return [table for table in found if table is not None]


def quickstart_series() -> list[Evaluation]:
    labels = ["before", "after phase 1", "after phase 2"]
    return [
        Evaluation(
            label,
            f"policy:v{i}",
            tuple(
                Row(f"q{n}", "zoom", form, 0, "answered", accuracy=right, tool_reward=0.1 * i + n / 100, calls=n % 3)
                for n in range(20)
                for form, right in (("answer", float(n < 5 * i)), ("tool", None))
            ),
        )
        for i, label in enumerate(labels, start=1)
    ]


@cache
def every() -> dict[str, tuple[Table | str, ...]]:
    """All tables that the commands print, but those of ``quickstart``, by command."""
    rates = {"questions": 9, "without_verdict": 1, "histogram": [{"rate": r / 8, "questions": r} for r in range(1, 9)]}
    rules = [{"rule": rule, "seen": 12345, "dropped": 678, "kept": 11667} for rule in ("near_duplicates", "pass_rate")]
    filtered = {"data": "deepeyes-47k:v12", "kept": 10989, "rows": 12345, "rules": rules, "policy": "codev-sft:v3"}
    distilled = {"teacher": "qwen3-vl-235b-a22b-thinking", "data": "deepeyes-47k:v12", "kept": 7, "rows": 9}
    distilled |= {"types": {"single_tool": 5, "error": 2}, "dropped_rows": {"the answer is wrong: judged 0": 2}}
    distilled |= {"tries": 11, "money": 0.25, "stopped": "the budget of 100000 tokens is spent"}
    distilled |= {
        "usage": {"requests": 31, "cached": 2, "input": 123456, "output": 6543},
        "price": {"input": 1.0, "output": 2.0},
    }
    usage = TokenUsage(123_456_789, 9_876_543, 31_000)
    cost_of = accounts.cost(
        CostEstimate(9, 4, usage, usage), "teacher", Price(1.0, 4.0), Distillation(budget=Budget(10**6, 5.0))
    )
    found = [("opencv-python-headless version", "ok", "/usr/lib/python3/dist-packages/cv2/version.py", "nothing")]
    plan = cost.run(["+recipe=toolsrl", "cluster=1x8xH200", "scale=node"], None)
    return {
        "plan": tuple(plans.tables(plan)),
        "filter": tuple(accounts.filtered(filtered | {"pass_rate_without_tools": rates})),
        "synth": tuple(accounts.distilled(distilled)),
        "synth dry_run": tuple(cost_of),
        "doctor": (doctor.page("vtcli", found),),
        "report": tuple(tables.all_tables(quickstart_series(), 0)),
    }


COMMANDS = ("plan", "filter", "synth", "synth dry_run", "doctor", "report")


def printed(width: int, terminal: bool, parts: Iterable[Table | str] | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_all(quickstart() if parts is None else parts, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def columns(text: str) -> str:
    """All cells read column by column within each row of a table, so that what was wrapped is whole again."""
    whole: list[str] = []
    row: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        cells = re.split("[│┃|]", line)[1:-1]
        if cells and (not row or len(cells) == len(row[0])):
            row.append(cells)
        elif row:
            whole += [" ".join(" ".join(part.split()) for part in column if part.strip()) for column in zip(*row)]  # noqa: B905
            row = []
    return "\n".join(whole)


def check_whole(text: str, width: int, parts: Iterable[Table | str]) -> None:
    """Nothing is cut with an ellipsis or at the edge, and every cell can be read."""
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    found = "".join(columns(text).split())
    for table in (part for part in parts if isinstance(part, Table)):
        for cell in (cell for line in table.lines for cell in line):
            for words in (cell.text, cell.detail):
                assert "".join(words.split()) in found, words


@each_case("width", [100, 80, 60, 40])
def test_nothing_is_cut_off_on_a_terminal(width: int) -> None:
    check_whole(printed(width, terminal=True), width, quickstart())


@each_case("command", COMMANDS)
@each_case("width", [100, 80, 60])
def test_no_command_prints_a_table_that_is_cut_off(command: str, width: int) -> None:
    check_whole(printed(width, True, every()[command]), width, every()[command])


@each_case("command", COMMANDS)
def test_through_a_pipe_every_row_of_every_command_is_one_plain_line(command: str) -> None:
    text = printed(60, False, every()[command])
    assert not re.search("[─━│┃\x1b…]", text)
    for table in (part for part in every()[command] if isinstance(part, Table)):
        for line in table.lines:
            cells = [f"{c.text} {c.detail}".replace("\n", ", ").strip() for c in line]
            assert any([each.strip() for each in row.split("|")[1:-1]] == cells for row in text.splitlines()), cells


WORDS = st.text("abcdefgh0123456789.-", min_size=0, max_size=30)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(WORDS, min_size=5, max_size=5), min_size=1, max_size=3), st.sampled_from([24, 40, 60, 80]))
def test_any_table_is_whole_at_any_width(rows: list[list[str]], width: int) -> None:
    table = Table("t", "", tuple("abcde"), tuple(tuple(map(Cell, row)) for row in rows))
    check_whole(printed(width, True, [table]), width, [table])


def test_at_eighty_columns_every_interval_stands_in_one_line() -> None:
    text = printed(80, terminal=True)
    for table in quickstart():
        for detail in (part for line in table.lines for cell in line for part in cell.detail.split("\n") if part):
            assert detail in text
    assert re.search(r"after phase 2 −\s", text)  # names wrap between words


def test_without_a_terminal_a_row_is_one_line_of_plain_text() -> None:
    text = printed(60, terminal=False)
    assert not re.search("[─━│┃\x1b…]", text)
    (line,) = [line for line in text.splitlines() if "after phase 2 − before" in line]
    assert re.search(r"\| *\+0\.500 \[\+0\.\d+, \+0\.\d+\], p = 0\.00\d *\|", line)


def test_a_list_is_a_table_on_a_terminal_and_has_tabs_through_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [("base:v1", "model", "1.2 MB"), ("charts:v1", "dataset", "[red]0.1 MB")]
    print_list(("artifact", "kind", "size"), lines)
    assert capsys.readouterr().out == "base:v1\tmodel\t1.2 MB\ncharts:v1\tdataset\t[red]0.1 MB\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    print_list(("artifact", "kind", "size"), lines)
    shown = capsys.readouterr().out
    assert "artifact" in shown and "[red]0.1" in shown and "\t" not in shown
