"""``report.html``, self-contained up to a size, and ``report.md``: the same numbers for a terminal or a diff."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from vtcli.protocols import Images
from vtcli.report import pages, plots, tables, templates, viewer
from vtcli.report.content import ReportData
from vtcli.report.printing import Table, to_markdown
from vtcli.schema import Scored
from vtcli.statistics.rows import pick
from vtcli.store import disk
from vtcli.store.images import ImageStore, image_file

MAX_BYTES = 5_000_000
"""Bytes of a page with its trajectories inside. Beyond it they lie in ``pages/`` and ``images/`` beside the page."""


def build(folder: Path, data: ReportData, images: ImageStore) -> tuple[Path, Path]:
    """Writes the report into ``folder``.

    Args:
        images: has the view of every image of ``data.shown``.

    Returns:
        The paths of the HTML page and of the Markdown page.

    Raises:
        InputError: the folder cannot be written, or an image is missing.
    """
    page, text = folder / "report.html", folder / "report.md"
    found = tables.all_tables(data.series, data.seed)
    inside = inline(data.shown, images)
    if inside is None:
        pages.write(folder, data.shown, viewer.PictureFiles(_kept(folder, images)))
    disk.write_atomic(page, html(data, found, inside).encode())
    disk.write_atomic(text, markdown(data, found).encode())
    return page, text


@dataclass(frozen=True, slots=True)
class InlineCards:
    """The trajectories of a self-contained page, and their pictures."""

    album: viewer.Album
    cards: Sequence[viewer.Card]


def inline(found: Sequence[Scored], images: Images) -> InlineCards | None:
    """Returns the cards of a self-contained page and their pictures, or None if they are too large for one page."""
    album, cards, spent = viewer.Album(images), list[viewer.Card](), 0
    for scored in found:
        card = viewer.card(scored, album)
        texts = (card.question, card.question, card.answer, card.truth, card.error)  # the question is on it twice
        spent += (
            4000
            + sum(3 * len(text or "") for text in texts)
            + sum(3 * len(str(step.text)) + 900 * len(step.shots) for step in card.steps)
        )
        if album.size + spent > MAX_BYTES * 0.8:
            return None
        cards.append(card)
    return InlineCards(album, cards)


def _kept(folder: Path, images: ImageStore) -> Callable[[str], Path | None]:
    """Returns the file of an image in the report's folder, and copies it there if needed."""

    def find(sha: str) -> Path | None:
        place, source = image_file(folder / "images", sha), images.path(sha)
        if not place.exists():
            if not source.exists():
                return None
            with disk.checked(place, "copy an image to"):
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)
        return place

    return find


def html(data: ReportData, found: Sequence[Table], inside: InlineCards | None) -> str:
    """Returns the page; without ``inside`` it lists the pages of ``pages.write``. The template escapes all text of
    models and data sets."""
    headline = [t for t in found if t.title in ("Before and after", "Paired differences")]
    curves = _curves(data)
    sections = [("result", "Result"), ("training", "Training"), ("tables", "Tables")]
    sections += [("trajectories", "Trajectories"), ("origin", "Where this comes from")]
    hidden = {"training": not curves, "trajectories": not data.shown}
    beside = " 'self' file:" if inside is None else ""
    return templates.render(
        "report.html.j2",
        data=data,
        policy="default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
        f"img-src data:{beside}; script-src {templates.digest(templates.asset('browse.js'))}{beside}",
        paged=inside is None,
        album=inside.album.uris if inside else {},
        sections=[s for s in sections if not hidden.get(s[0])],
        figures=_figures(data),
        headline=[*headline, *data.extra],
        rest=[t for t in found if t not in headline],
        curves=curves,
        cards=inside.cards if inside else (),
    )


def _figures(data: ReportData) -> list[Markup]:
    """Returns accuracy, tool reward and calls of every model with their intervals."""
    figures: list[Markup] = []
    for title, form, measure in tables.used_headlines(data.series, data.seed, tables.MAIN):
        lines = [(e.label, pick(tables.summaries_of(e, data.seed), form, measure)) for e in data.series]
        figures.append(plots.intervals(title, [(n, e) for n, e in lines if e is not None], measure != "calls"))
    return figures


def _curves(data: ReportData) -> list[Markup]:
    last = max((c.steps[-1] for c in data.training.curves), default=0)
    return [plots.curve(c, data.training.phases, last) for c in data.training.curves]


def markdown(data: ReportData, found: Sequence[Table]) -> str:
    """Returns the facts, all tables, the ends of the training curves, lineage and commands."""
    parts = [f"# {data.title}\n"]
    parts.append("\n".join(f"- {k}: {v}" for k, v in data.facts.items()) + "\n")
    parts.extend(f"{note}\n" for note in data.notes)
    parts.extend(to_markdown(t) for t in (*data.extra, *found))
    if data.training.curves:
        rule = "| metric | first step | last step | steps |\n| --- | --: | --: | --: |"
        lines = [
            f"| {c.name} | {plots.tick_text(c.values[0])} | {plots.tick_text(c.values[-1])} | {len(c.steps)} |"
            for c in data.training.curves
        ]
        phases = ", ".join(f"{p.name} from step {p.step}" for p in data.training.phases)
        note = f"Phases: {phases}.\n\n" if phases else ""
        parts.append("### Training\n\n" + note + "\n".join([rule, *lines]) + "\n")
    if data.lineage:
        parts.append(f"### Lineage\n\n```\n{data.lineage}\n```\n")
    if data.commands:
        parts.append("### Commands\n\n```\n" + "\n".join(data.commands) + "\n```\n")
    return "\n".join(parts)
