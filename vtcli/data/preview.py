"""A page of imported rows as they were understood: images with their boxes, texts, truth, turns, and why rows are bad.

One file that needs nothing else. It is for a look before anything is made.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from jinja2 import Environment
from PIL import Image

from vtcli.data.generators.item import Item
from vtcli.data.importers.problems import BadRow
from vtcli.errors import InputError
from vtcli.protocols import Pixels
from vtcli.schema import Json
from vtcli.store import encoded, images
from vtcli.store.artifacts import Artifact

LONGEST_PX = 480
"""Longer side of an image on the page. Boxes keep the original's coordinates."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em; color: #222 }
article { border: 1px solid #ccc; border-radius: 6px; padding: .8em 1em; margin: 1em 0; overflow: hidden }
article.bad { border-color: #c33; background: #fff4f4 }
figure { display: inline-block; margin: 0 .8em .5em 0; position: relative; vertical-align: top }
figure img { display: block; max-width: 100% }
figure svg { position: absolute; inset: 0; width: 100%; height: calc(100% - 1.5em) }
rect { fill: none; stroke: #ff00c8; stroke-width: 2; vector-effect: non-scaling-stroke }
figcaption { font-size: 12px; color: #666; height: 1.5em }
pre { white-space: pre-wrap; margin: .3em 0; padding: .4em .6em; background: #f4f4f4; border-radius: 4px }
pre.assistant { background: #e8f3e8 }
dt { font-weight: 600 } dd { margin: 0 0 .3em 0; white-space: pre-wrap }
</style>
<h1>{{ title }}</h1>
<p>{{ about }}</p>
{% if sheet %}
<figure><img src="{{ sheet }}" alt="contact sheet"><figcaption>contact sheet</figcaption></figure>
{% endif %}
{% for card in cards %}
<article class="{{ 'bad' if card.problem else 'row' }}">
<h2>{{ card.name }}</h2>
{% if card.problem %}<p><b>{{ card.reason }}</b></p><pre>{{ card.problem }}</pre>{% endif %}
{% for shot in card.shots %}
<figure><img src="{{ shot.uri }}" width="{{ shot.shown[0] }}" height="{{ shot.shown[1] }}" alt="">
<svg viewBox="0 0 {{ shot.width }} {{ shot.height }}" preserveAspectRatio="none">
{% for box in shot.boxes %}<rect x="{{ box[0] }}" y="{{ box[1] }}" width="{{ box[2] - box[0] }}"
 height="{{ box[3] - box[1] }}"><title>{{ box[4] }}</title></rect>{% endfor %}</svg>
<figcaption>image {{ loop.index }}: {{ shot.width }} × {{ shot.height }}</figcaption></figure>
{% endfor %}
<dl>{% for name, text in card.facts %}<dt>{{ name }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>
{% for role, text in card.turns %}<b>{{ role }}</b><pre class="{{ role }}">{{ text }}</pre>{% endfor %}
</article>
{% endfor %}
</html>
"""


@dataclass(frozen=True, slots=True)
class PreviewShot:
    """One image with boxes: x1, y1, x2, y2, label."""

    uri: str
    width: int
    height: int
    shown: tuple[int, int]
    boxes: tuple[tuple[Json, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PreviewCard:
    """One row of the page."""

    name: str
    shots: tuple[PreviewShot, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    turns: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    problem: str = ""


def of_item(item: Item) -> PreviewCard:
    """A row that became a question."""
    boxes = tuple((*box["box"], box["label"]) for box in item.truth.get("boxes", ()))
    pictures = item.pictures or tuple(item.clip.stills().values() if item.clip else ())[:6]
    shots = tuple(_shot(pixels, boxes if number == 0 else ()) for number, pixels in enumerate(pictures))
    said = {key: value for key, value in item.truth.items() if key != "boxes"}
    facts = [("question", item.question), ("answer", item.answer), ("truth", json.dumps(said, ensure_ascii=False))]
    return PreviewCard(item.id, shots, tuple(facts))


def of_messages(name: str, messages: Sequence[Mapping[str, str]], pictures: Iterable[Pixels]) -> PreviewCard:
    """A row that became a demonstration. Only the assistant's turns are learnt, and have a colour of their own."""
    turns = tuple((message["role"], message["content"]) for message in messages)
    return PreviewCard(name, tuple(_shot(pixels) for pixels in pictures), (), turns)


def of_bad(row: BadRow) -> PreviewCard:
    """A row that cannot be used."""
    return PreviewCard(f"row {row.row} of {row.file}", reason=row.reason, problem=row.message)


def first_rows(artifact: Artifact, count: int, file: str | None = None) -> Iterator[Mapping[str, Any]]:
    """The first rows of each file of a dataset or of demonstrations, or of one file.

    Raises:
        InputError: another kind of artifact, or no such file.
    """
    if artifact.kind not in ("dataset", "demos"):
        raise InputError(
            f"{artifact.ref} is a {artifact.kind}; expected a dataset or demos artifact. For trajectories there is "
            "`vtcli view`."
        )
    found = {path.stem: path for path in sorted(artifact.path.glob("*.parquet"))}
    if file is not None and file not in found:
        raise InputError(f"{artifact.ref} has no file {file!r}; it has {', '.join(found)}.")
    for path in [found[file]] if file else found.values():
        batches = pq.ParquetFile(path).iter_batches(min(count, 32))
        rows = (encoded.filled(row, str(path)) for batch in batches for row in batch.to_pylist())
        yield from itertools.islice(rows, count)


def of_stored(row: Mapping[str, Any]) -> PreviewCard:
    """A row of an artifact, a question or a demonstration."""
    pictures = [images.decode(image["bytes"], f"of {row['id']}") for image in row["images"]]
    if "messages" in row:
        return of_messages(row["id"], row["messages"], pictures)
    info = row["extra_info"]
    truth = json.loads(info["truth"])
    boxes = tuple((*box["box"], box["label"]) for box in truth.get("boxes") or ())
    shots = tuple(_shot(pixels, boxes if number == 0 else ()) for number, pixels in enumerate(pictures))
    facts = {name: info[name] for name in ("question", "answer")}
    facts["truth"] = json.dumps({key: value for key, value in truth.items() if key != "boxes"}, ensure_ascii=False)
    facts |= {f"video {number}": video["video"] for number, video in enumerate(row.get("videos") or ())}
    return PreviewCard(row["id"], shots, tuple(facts.items()))


def page(title: str, cards: Sequence[PreviewCard], about: str | None = None, sheet: bytes | None = None) -> str:
    """The page; everything that a row brought is escaped. ``sheet`` is a PNG that stands above the rows."""
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_PAGE)
    bad = sum(bool(card.problem) for card in cards)
    about = about or f"{len(cards)} rows, {bad} of them cannot be used. Nothing has been made yet."
    shown = f"data:image/png;base64,{base64.b64encode(sheet).decode()}" if sheet else ""
    return template.render(title=title, cards=cards, about=about, sheet=shown)


def text(card: PreviewCard) -> str:
    """A row for a terminal: sizes of its images, its facts and its turns."""
    lines = [f"# {card.name}", *(f"image {n}: {s.width} × {s.height}" for n, s in enumerate(card.shots, 1))]
    lines += [f"{name}: {said}" for name, said in card.facts]
    lines += [f"[{role}] {said}" for role, said in card.turns]
    return "\n".join(lines)


def _shot(pixels: Pixels, boxes: tuple[tuple[Json, ...], ...] = ()) -> PreviewShot:
    image = Image.fromarray(pixels)
    width, height = image.size
    image.thumbnail((LONGEST_PX, LONGEST_PX))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=85)
    uri = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return PreviewShot(uri, width, height, image.size, boxes)
