"""Rule: rows that are there already."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.filters.facts import RowFacts


def exact(rows: Sequence[RowFacts]) -> list[str | None]:
    """Drops a row whose images (byte by byte), videos and question (but for space around it) an earlier row has.

    The first one stays, also where the answers differ.
    """
    first: dict[tuple[tuple[str, ...], str], RowFacts] = {}
    found: list[str | None] = []
    for row in rows:
        earlier = first.setdefault((row.media, row.question.strip()), row)
        found.append(None if earlier is row else f"as {earlier.id} in {earlier.file}")
    return found
