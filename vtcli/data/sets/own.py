"""Rows of one's own: the columns of docs/data.md, by these names or by others that ``columns`` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcli.data.importers import options, texts
from vtcli.data.sets.fields import Record, every, first
from vtcli.data.sets.row import SetRow

Columns = Mapping[str, tuple[str, ...]]
"""The paths of each field: the first with a value counts, of ``images`` all of them in order."""

GUESSED: Columns = {
    **{name: (name,) for name in ("question", "boxes", "choices", "numeric", "required", "search", "rule")},
    **{name: (name,) for name in ("video", "tolerance", "width", "height")},
    "answer": ("answer", "answers"),
    "images": ("image", "images"),
}
"""The columns of rows without a function."""

COLUMNS = (*GUESSED, "medium", "options", "source", "truth", "messages", "response", "system", "tools", "box_size")
"""Fields that may have a column."""


def named(record: Record, columns: Columns) -> dict[str, Any]:
    """The fields that stand in the named columns."""
    found: dict[str, Any] = {}
    for name, paths in columns.items():
        if name == "question":
            found |= asked(record, *paths)
        elif name == "images":
            found[name] = every(record, *paths)
        else:
            found[name] = options.held(record, paths) if name == "options" else first(record, *paths)
    if "messages" in columns or "response" in columns:
        found["trajectory"] = True
    return found


def asked(record: Record, *paths: str) -> dict[str, Any]:
    """The question, and the first chat that one of the paths holds."""
    values = every(record, *paths)
    chats = (chat for value in values if texts.is_chat(chat := texts.chat_of(value)))
    return {"question": values[0] if values else None, "chat": next(chats, None)}


def own(record: Record, columns: Columns = GUESSED) -> SetRow:
    """A row by the names of its columns."""
    return SetRow(**named(record, columns))


def mapped(record: Record, columns: Mapping[str, str], **values: Any) -> SetRow:
    """A row whose fields ``columns`` names, joined by spaces where it names several; ``values`` are the rest.

    >>> mapped({"problem": "Why?", "label": 3}, {"question": "problem", "answer": "solution label"}, unwrap=True).answer
    3
    """
    paths = {"width": "width", "height": "height", **columns}  # by them, boxes of another size are refused
    return SetRow(**{**named(record, {name: tuple(each.split()) for name, each in paths.items()}), **values})
