"""A picture of dropped rows, each beside the row or reference that it resembles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vtcli.data import sheet
from vtcli.filters.applying import Subset
from vtcli.filters.facts import Match
from vtcli.protocols import Pixels
from vtcli.store import images

PAIRS = 8
"""Of each rule, the first ones."""

ImagesById = Callable[[str, str], Sequence[bytes]]
"""The images of a row or a reference, by its file or source and its id."""


def picture(found: Subset, shown: ImagesById) -> Pixels | None:
    """Returns the first pairs of each rule that compares rows, two a line; None if no such rule dropped a row."""
    strips: list[list[sheet.SheetCell]] = []
    for step in found.steps:
        matched = [(row, reason) for row, reason in step.dropped if isinstance(reason, Match)]
        for row, reason in matched[:PAIRS]:
            gone = _cell(shown(row.file, row.id), f"{step.name}: {row.id} goes", row.question)
            other = _cell(shown(reason.source, reason.id), f"{reason.id} of {reason.source}", reason.why)
            strips.append([*gone, *other])
    return sheet.sheet(sheet.packed(strips, columns=4)) if strips else None


def _cell(encoded: Sequence[bytes], title: str, text: str) -> list[sheet.SheetCell]:
    """Returns no cell for a row without images."""
    return [sheet.captioned(images.decode(encoded[0], title), [title, text[:300]])] if encoded else []
