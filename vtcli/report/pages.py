"""Pages beside a report whose trajectories are too many for one file: ``pages/list.js``, ``texts.js``, ``0.js``, ….

A page opened from a disk may load scripts and pictures beside it, and nothing else; so each is a script that hands its
content to the viewer's (``page/browse.js``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from vtcli.report import listing, templates, viewer
from vtcli.schema import Scored
from vtcli.store import codec, disk

PAGE = 50
"""Trajectories of a page."""

LIST, TEXTS = "pages/list.js", "pages/texts.js"


def write(folder: Path, found: Sequence[Scored], pictures: viewer.Pictures) -> None:
    """Writes the list, the searchable texts, and every page. Raises ``InputError`` for disk trouble."""
    shutil.rmtree(folder / "pages", ignore_errors=True)
    entries = [codec.encode(listing.entry(scored)) for scored in found]
    disk.write_atomic(folder / LIST, call("list", PAGE, entries))
    disk.write_atomic(folder / TEXTS, call("texts", [listing.text(scored) for scored in found]))
    for at in range(0, len(found), PAGE):
        bodies = [body(viewer.card(scored, pictures)) for scored in found[at : at + PAGE]]
        disk.write_atomic(folder / f"pages/{at // PAGE}.js", call("cards", at, bodies), durable=False)


def body(card: viewer.Card) -> str:
    """The HTML of an open card."""
    return templates.render("body.html.j2", card=card)


def turns(steps: Sequence[viewer.ViewerStep]) -> str:
    """The HTML of turns, as in an open card."""
    return templates.render("turns.html.j2", steps=steps)


def ending(card: viewer.Card) -> str:
    """The HTML of an open card without its question."""
    return templates.render("ending.html.j2", card=card)


def beside(cards: Sequence[tuple[str, viewer.Card | None]]) -> str:
    """The HTML of the cards of several models on one question; None: it was not asked."""
    return templates.render("beside.html.j2", cards=cards)


def call(name: str, *values: object) -> bytes:
    """Returns a script that calls a function of the viewer. ``values`` are JSON, which JavaScript can read."""
    given = ",".join(json.dumps(value, separators=(",", ":")) for value in values)
    return f"vtcli.{name}({given})\n".encode()
