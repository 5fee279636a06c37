"""``report.html``, self-contained, and ``report.md``: the same numbers for a browser and for a terminal or a diff."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from vtcli.algo.rows import pick, summarise
from vtcli.protocols import Images
from vtcli.report import plots, tables, viewer
from vtcli.report.content import ReportData
from vtcli.store import disk

MAX_BYTES = 5_000_000
"""Of the page. Trajectories that would pass it are left out, and the page says how many."""


def build(folder: Path, data: ReportData, images: Images) -> tuple[Path, Path]:
    """Write the report into ``folder``.

    Args:
        images: has the view of every image of ``data.shown``.

    Returns:
        The paths of the HTML page and of the Markdown page.

    Raises:
        InputError: the folder cannot be written, or an image is missing.
    """
    page, text = folder / "report.html", folder / "report.md"
    disk.write_atomic(page, html(data, images).encode())
    disk.write_atomic(text, markdown(data).encode())
    return page, text


def html(data: ReportData, images: Images) -> str:
    """The page. Everything that a model or a data set wrote is escaped by the template."""
    album, cards = viewer.Album(images), list[viewer.Card]()
    spent = 0
    for scored in data.shown:
        card = viewer.card(scored, album, len(cards))
        spent += 4000 + sum(3 * len(str(step.text)) + 900 * len(step.shots) for step in card.steps)
        if cards and album.size + spent > MAX_BYTES * 0.8:
            break
        cards.append(card)
    found = tables.all_tables(data.series, data.seed)
    headline = [t for t in found if t.title in ("Before and after", "Paired differences")]
    curves = _curves(data)
    sections = [("result", "Result"), ("training", "Training"), ("tables", "Tables")]
    sections += [("trajectories", "Trajectories"), ("origin", "Where this comes from")]
    hidden = {"training": not curves, "trajectories": not cards}
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_asset("report.html.j2"))
    return template.render(
        data=data,
        style=Markup(_asset("style.css")),  # noqa: S704  our own file
        script=Markup(_asset("browse.js")),  # noqa: S704  our own file
        album=_used(album, cards),
        sections=[s for s in sections if not hidden.get(s[0])],
        figures=_figures(data),
        headline=[*headline, *data.extra],
        rest=[t for t in found if t not in headline],
        curves=curves,
        cards=cards,
        omitted=len(data.shown) - len(cards),
        filters={
            "task": sorted({c.task for c in cards}),
            "question": sorted({c.form for c in cards}),
            "outcome": sorted({c.outcome for c in cards}),
        },
    )


def _used(album: viewer.Album, cards: list[viewer.Card]) -> dict[str, tuple[str, int, int]]:
    """The pictures that the cards on the page refer to: the last card may have been left out."""
    shots = [shot for card in cards for shot in (*card.start, *(s for step in card.steps for s in step.shots))]
    text = "".join(str(shot.svg) for shot in shots)
    return {key: value for key, value in album.uris.items() if f"#{key}" in text}


def _figures(data: ReportData) -> list[Markup]:
    """Accuracy, tool reward and calls of every model with their intervals."""
    figures: list[Markup] = []
    for title, form, measure in tables.used_headlines(data.series, data.seed, tables.MAIN):
        lines = [(e.label, pick(summarise(e.rows, data.seed), form, measure)) for e in data.series]
        figures.append(plots.intervals(title, [(n, e) for n, e in lines if e is not None], measure != "calls"))
    return figures


def _curves(data: ReportData) -> list[Markup]:
    last = max((c.steps[-1] for c in data.training.curves), default=0)
    return [plots.curve(c, data.training.phases, last) for c in data.training.curves]


def markdown(data: ReportData) -> str:
    """The facts, all tables, the ends of the training curves, lineage and commands."""
    parts = [f"# {data.title}\n"]
    parts.append("\n".join(f"- {k}: {v}" for k, v in data.facts.items()) + "\n")
    parts.extend(f"{note}\n" for note in data.notes)
    parts.extend(tables.to_markdown(t) for t in (*data.extra, *tables.all_tables(data.series, data.seed)))
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


def _asset(name: str) -> str:
    return (resources.files("vtcli.report") / "page" / name).read_text(encoding="utf-8")
