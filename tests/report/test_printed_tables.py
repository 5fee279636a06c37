"""Tables on a terminal of any width: they wrap, and nothing is cut off; without a terminal they are plain text."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from vtcli.algo.rows import Row
from vtcli.report import tables
from vtcli.report.content import Evaluation


def quickstart() -> list[tables.Table]:
    """The models of ``make quickstart`` with the three measures that it prints."""
    labels = ["before", "after phase 1", "after phase 2"]
    series = [
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
    found = tables.progress(series, 0, tables.MAIN), tables.differences(series, 0, tables.MAIN)
    return [table for table in found if table is not None]


def printed(width: int, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    tables.print_all(quickstart(), console)
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


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_nothing_is_cut_off_on_a_terminal(width: int) -> None:
    text = printed(width, terminal=True)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    found = columns(text)
    for table in quickstart():
        for cell in (cell for line in table.lines for cell in line):
            for words in (cell.text, cell.detail):
                assert "".join(words.split()) in "".join(found.split()), words


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
