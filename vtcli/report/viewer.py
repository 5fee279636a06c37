"""From a scored trajectory to what the page prints of it: text pieces, pictures with their drawings, reward parts."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from markupsafe import Markup, escape
from PIL import Image

from vtcli.protocols import Images
from vtcli.report import overlay
from vtcli.report.cells import number
from vtcli.report.listing import ListEntry, entry
from vtcli.report.tables import short
from vtcli.schema import CallResult, EnvTurn, ImageRef, Observation, Sample, Scored, Signals, Stop, Trajectory
from vtcli.store.images import ImageStore, image_file

SHOWN_PX = 336
"""Long side of a picture on the page: a 112-pixel view appears three times enlarged."""

STORED_PX = 640
"""Larger views are scaled down for the page and stored as JPEG."""

_TAGS = re.compile(r"(</?(?:think|answer|tool_call)>)")


class Pictures(Protocol):
    """Pictures of a page: those inside it, or files beside it."""

    def element(self, ref: ImageRef) -> Markup | None: ...  # of SVG, for an image's view; None: it was not kept


@dataclass
class Album:
    """Every picture of a self-contained page once, as data URI, in the order of first use; ``size`` in bytes."""

    images: Images
    uris: dict[str, tuple[str, int, int]] = field(default_factory=dict[str, tuple[str, int, int]])
    size: int = 0

    def element(self, ref: ImageRef) -> Markup | None:
        if isinstance(self.images, ImageStore) and self.images.dropped([ref]):
            return None
        key = f"i{ref.view[:16]}"
        if key not in self.uris:
            uri = data_uri(Image.fromarray(self.images.view(ref)))
            self.uris[key] = (uri, ref.view_width, ref.view_height)
            self.size += len(uri)
        return Markup('<use href="#{}"/>').format(key)


@dataclass(frozen=True, slots=True)
class PictureFiles:
    """Pictures in ``images/`` beside the page. ``find`` gives the file of a hash, or None."""

    find: Callable[[str], Path | None]

    def element(self, ref: ImageRef) -> Markup | None:
        if self.find(ref.view) is None:
            return None
        place = image_file(Path("images"), ref.view).as_posix()
        size = Markup('width="{}" height="{}"').format(ref.view_width, ref.view_height)
        return Markup('<image {} preserveAspectRatio="none" href="{}"/>').format(size, place)


def data_uri(picture: Image.Image) -> str:
    """PNG for small pictures, JPEG of at most 640 pixels a side for large ones."""
    buffer, long_side = io.BytesIO(), max(picture.size)
    if long_side <= STORED_PX // 2:
        picture.save(buffer, "PNG", optimize=True)
        kind = "png"
    else:
        picture.thumbnail((STORED_PX, STORED_PX), Image.Resampling.LANCZOS)
        picture.save(buffer, "JPEG", quality=80)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture(pictures: Pictures, ref: ImageRef, drawing: str, label: str) -> Markup:
    """An image at reading size with its drawing over it; a box with a note where the run did not keep the image."""
    w, h = ref.view_width, ref.view_height
    scale = min(3.0, SHOWN_PX / max(w, h))
    shown = pictures.element(ref)
    if shown is None:
        return Markup(  # noqa: S704  labels are escaped
            f'<svg class="picture" width="{SHOWN_PX}" height="60" role="img" aria-label="{escape(label)}">'
            '<text x="8" y="34">The run did not keep this image.</text></svg>'
        )
    return Markup(  # noqa: S704  labels are escaped
        f'<svg class="picture" viewBox="0 0 {w} {h}" width="{w * scale:.0f}" height="{h * scale:.0f}" role="img" '
        f'aria-label="{escape(label)}">{shown}{drawing}</svg>'
    )


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture and its caption."""

    svg: Markup
    caption: str


@dataclass(frozen=True, slots=True)
class ViewerStep:
    """One turn: what the policy wrote, or what the world answered."""

    kind: str  # policy | world
    text: Markup
    status: str = ""
    title: str = ""
    shots: tuple[Shot, ...] = ()  # before and after


@dataclass(frozen=True, slots=True)
class Card:
    """One trajectory on the page: its line in the list, and what it holds. Texts are whole."""

    entry: ListEntry
    question: str
    answer: str
    truth: str
    error: str
    facts: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]
    total: str
    start: tuple[Shot, ...]
    steps: tuple[ViewerStep, ...]


def _part(name: str, value: float | None) -> tuple[str, str]:
    return name.replace("_", " "), "unjudged" if value is None else number(value)


def card(scored: Scored, pictures: Pictures, begin: int = 0) -> Card:
    """The page's view of one trajectory, with its turns from number ``begin`` on."""
    t, verdict = scored.trajectory, scored.verdict
    truth = overlay.draw_truth(t.sample)
    start = [
        Shot(picture(pictures, ref, truth if i == 0 else "", f"image {i}"), _size(i, ref))
        for i, ref in enumerate(t.sample.images)
    ]
    return Card(
        entry=entry(scored),
        question=t.sample.question,
        answer=t.answer if t.answer is not None else "–",
        truth=t.sample.answer,
        error=t.error or "",
        facts=tuple(_facts(scored)),
        parts=tuple(_part(name, value) for name, value in verdict.parts.items()) if verdict else (),
        total=number(scored.reward) if scored.reward is not None else "no verdict",
        start=tuple(start),
        steps=tuple(_steps(scored, pictures, truth, begin)),
    )


def policy_step(text: str) -> ViewerStep:
    """One turn of the policy."""
    return ViewerStep("policy", mark_tags(text))


def world_steps(
    sample: Sample, images: Sequence[ImageRef], observation: Observation, pictures: Pictures
) -> list[ViewerStep]:
    """One turn of the world, of a rollout that is not over; ``images`` were there before it."""
    asked = replace(sample, images=tuple(images))
    t = Trajectory("", asked, (), (*images, *observation.images), (EnvTurn(observation, ()),), Stop.ANSWERED, 0)
    return _steps(Scored(t, Signals({}), None), pictures, overlay.draw_truth(asked))


def _steps(scored: Scored, pictures: Pictures, truth: str, begin: int = 0) -> list[ViewerStep]:
    t, steps = scored.trajectory, list[ViewerStep]()
    known = len(t.images) - sum(len(turn.observation.images) for turn in t.turns[begin:] if isinstance(turn, EnvTurn))
    for turn in t.turns[begin:]:
        if not isinstance(turn, EnvTurn):
            steps.append(policy_step(turn.text))
            continue
        observation = turn.observation
        for result in observation.results:
            shots = tuple(_shots(scored, pictures, result, known, truth))
            title = f"{short(result.name or 'unreadable call')} {arguments_text(result.arguments)}".strip()
            steps.append(ViewerStep("world", escape(result.message), str(result.status), title, shots))
        if not observation.results:
            steps.append(ViewerStep("world", escape(observation.text)))
        known += len(observation.images)
    return steps


def _shots(scored: Scored, pictures: Pictures, result: CallResult, known: int, truth: str) -> list[Shot]:
    """The image acted on with the call drawn on it, then what came back."""
    t = scored.trajectory
    parent = overlay.acted_on(result, t.images[:], known)
    shots: list[Shot] = []
    call = overlay.draw_call(result, t.images, parent) if parent is not None else ""
    if parent is not None and (call or result.images):
        ref = t.images[parent]
        drawing = (truth if overlay.same_frame(t, parent) else "") + call
        shown = picture(pictures, ref, drawing, f"image {parent} with the call")
        shots.append(Shot(shown, f"{_size(parent, ref)}, the call on it"))
    for index in result.images:
        if index < len(t.images):
            made = t.images[index]
            below = truth if overlay.same_frame(t, index) else ""
            shots.append(Shot(picture(pictures, made, below, f"image {index}"), f"came back: {_size(index, made)}"))
    return shots


def _size(index: int, ref: ImageRef) -> str:
    full = "" if (ref.width, ref.height) == (ref.view_width, ref.view_height) else f" of {ref.width} × {ref.height}"
    return f"image {index}, {ref.view_width} × {ref.view_height}{full}"


def mark_tags(text: str) -> Markup:
    """Escaped text with its <think>, <tool_call> and <answer> tags set apart."""
    pieces = [
        Markup('<span class="tag">{}</span>').format(p) if _TAGS.fullmatch(p) else escape(p) for p in _TAGS.split(text)
    ]
    return Markup("").join(pieces)


def arguments_text(arguments: Mapping[str, Any] | None) -> str:
    """Arguments on one line, at most 200 characters, fractions to two decimals."""
    if not arguments:
        return ""
    text = ", ".join(f"{k} {json.dumps(_rounded(v), ensure_ascii=False)}" for k, v in arguments.items())
    return text if len(text) <= 200 else f"{text[:199]}…"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 2)
    return [_rounded(v) for v in cast("list[Any]", value)] if isinstance(value, list) else value


def _facts(scored: Scored) -> Sequence[tuple[str, str]]:
    t, values = scored.trajectory, scored.signals.values
    facts = [("turns", str(len(t.policy_turns))), ("calls", str(len(t.results)))]
    facts.append(
        ("policy tokens", str(sum(len(turn.token_ids) for turn in t.policy_turns)) if t.has_tokens else "not known")
    )
    if "transform" in t.sample.truth:
        facts.append(("page was", str(t.sample.truth["transform"])))
    if isinstance(values.get("answer_score"), int | float):
        facts.append(("answer score", number(float(values["answer_score"]))))
    if isinstance(values.get("format_ok"), bool):
        facts.append(("format", "ok" if values["format_ok"] else "broken"))
    return [*facts, ("seed", str(t.seed))]
