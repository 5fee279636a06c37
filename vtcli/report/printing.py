"""Tables in one neutral form, and their printer: on a terminal of any width, through a pipe, and as Markdown.

Every table of the project goes through ``print_all``. The templates of the pages read the same ``Table``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from vtcli.foreign import one_line, visible

WIDEST = 400
"""Characters of a line without a terminal; longer lines wrap."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: ``text`` in front, ``detail`` is its interval, ``hint`` its denominator and method."""

    text: str
    detail: str = ""
    hint: str = ""
    head: bool = False  # names its line
    words: bool = False  # a label, not a number
    style: str = ""  # on a terminal, in rich's words: "bold", "green"


@dataclass(frozen=True, slots=True)
class Table:
    """One table in reading order; every line has as many cells as there are columns."""

    title: str
    note: str
    columns: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]


def to_markdown(table: Table) -> str:
    """Returns a pipe table, intervals beside their value; escapes pipes and line breaks of labels."""
    lines = [[_plain(f"{c.text} {c.detail}".strip()) for c in line] for line in table.lines]
    head = [_plain(c) for c in table.columns]
    rule = ["---", *["--:"] * (len(head) - 1)]
    body = "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *lines])
    return f"### {table.title}\n\n{table.note}\n\n{body}\n"


def _plain(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", ", ")


def to_console(table: Table, *, plain: bool = False, width: int = WIDEST) -> RichTable:
    """The same table for a terminal of ``width``; labels are text, never markup. A line that is too wide wraps between
    words and is never cut off.

    ``plain`` is for a file or a pipe: between the bars of Markdown, and one line a row up to ``WIDEST`` characters.
    """
    table = _visible(table)
    found = RichTable(title=Text(table.title), title_justify="left", caption_justify="left")
    found.caption = Text(table.note) if table.note else None
    found.box = box.MARKDOWN if plain else box.HEAVY_HEAD
    widths = _widths(table, width - 3 * len(table.columns) - 1)
    if widths is None:  # the spaces beside the bars go before a word is broken
        found.padding = 0
        widths = _widths(table, width - len(table.columns) - 1, break_words=True)
    for i, column in enumerate(table.columns):
        left = i == 0 or (bool(table.lines) and table.lines[0][i].words)
        fixed = None if (plain and width >= WIDEST) or widths is None else widths[i]
        found.add_column(Text(column), justify="left" if left else "right", overflow="fold", width=fixed)
    for line in table.lines:
        details = [c.detail.replace("\n", ", ") if plain else f"\n{c.detail}" for c in line]
        cells = [
            Text.assemble((c.text, c.style), (f" {detail}" if plain else detail, "dim"))
            if c.detail
            else Text(c.text, c.style)
            for c, detail in zip(line, details, strict=True)
        ]
        found.add_row(*cells)
    return found


def _visible(table: Table) -> Table:
    """Returns the table without texts that could steer a terminal."""
    lines = [[replace(c, text=visible(c.text), detail=visible(c.detail)) for c in line] for line in table.lines]
    columns = tuple(visible(column) for column in table.columns)
    return Table(visible(table.title), visible(table.note), columns, tuple(tuple(line) for line in lines))


def _widths(table: Table, room: int, *, break_words: bool = False) -> list[int] | None:
    """Returns the columns' widths in ``room`` characters, or None if the longest words do not fit and must not break.

    Words and intervals stay whole as far as they can; the rest goes to the columns with most to wrap.
    """
    least, full = list[int](), list[int]()
    for i, column in enumerate(table.columns):
        texts = [column, *(line[i].text for line in table.lines)]
        details = [len(part) for line in table.lines for part in line[i].detail.split("\n")]
        least.append(max(1, *(len(word) for text in texts for word in text.split()), *details, 0))
        full.append(max(1, *(len(part) for text in texts for part in text.split("\n")), *details))
    if sum(least) > room and not break_words:
        return None
    longest = max(least)
    while sum(widths := [min(longest, each) for each in least]) > room and longest > 1:
        longest -= 1
    for _ in range(min(room, sum(full)) - sum(widths)):
        neediest = max(range(len(widths)), key=lambda i: full[i] / widths[i])
        widths[neediest] += 1
    return widths


def page_width() -> int:
    """Characters of a line of text for people without a terminal: ``COLUMNS``, or 80."""
    return shutil.get_terminal_size().columns


def print_all(parts: Iterable[Table | str], console: Console | None = None, piped_width: int = WIDEST) -> None:
    """Prints tables, and texts between them, on standard error, because standard output carries only results.

    Tables wrap to the terminal's width. Without a terminal they are plain text, as wide as they need to be, and wrap
    at ``piped_width``.
    """
    console = console or Console(stderr=True)
    terminal, width = console.is_terminal, console.width
    wraps = piped_width < WIDEST
    for part in parts:
        if isinstance(part, str):
            if wraps and not terminal:
                console.width = piped_width
            console.print(visible(part), highlight=False, markup=False, soft_wrap=not (terminal or wraps))
            continue
        found = to_console(part, plain=not terminal, width=width if terminal else piped_width)
        if not terminal and wraps:
            console.width = piped_width
        elif not terminal:
            console.width = max(80, Measurement.get(console, console.options.update(max_width=WIDEST), found).maximum)
        console.print(found)
        console.width = width


def print_list(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Prints a list on standard output: a table on a terminal, else one line a row with tabs and no head.

    The second form is for ``cut`` and ``awk``.
    """
    console = Console()
    if not console.is_terminal:
        for line in lines:
            console.file.write("\t".join(map(one_line, line)) + "\n")
        return
    cells = tuple(tuple(Cell(text, words=True) for text in line) for line in lines)
    if cells:
        print_all([Table("", "", tuple(columns), cells)], console)
