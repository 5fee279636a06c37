"""MVToolBench's items from a local copy of HierText: a turned picture, and a question about text too small in it.

CodeVision builds its benchmark in three steps (4.1): annotations that are very small beside the image are kept;
questions about them are made without any cue of their place; every image is turned or mirrored, each way equally
often. So each item needs a turn first and a crop then. The paper's own items are not released. It quotes the question
of a line and that of a letter; the wording of the others, and the bounds of lines and paragraphs, are ours.

The copy has the layout of the downloads: ``gt/validation.jsonl.gz``, which is one JSON object, and ``validation/`` with
``IMAGE_ID.jpg``.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vtcli.data.generators.item import FLIP, ROTATE, ZOOM, Item, Survey, item_id, pick, stream
from vtcli.data.generators.rotflip import TRANSFORMS
from vtcli.data.generators.turned import moved_box
from vtcli.data.importers import sources
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.errors import InputError
from vtcli.store import images

Kind = Literal["word", "line", "letter", "retrieval"]

LARGEST: Mapping[str, float] = {"word": 1e-4, "line": 5e-4, "paragraph": 2e-3}
"""Shares of the image's area below which an annotation is asked about. [P] 0.01 % for words; the others are [I]."""

TURNS = tuple(TRANSFORMS)[1:]

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextQuestion:
    """A question about one annotation, and the annotation's box in pixels of the upright image."""

    kind: Kind
    question: str
    answer: str
    rule: str
    label: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """One annotated image with everything that may be asked of it."""

    id: str
    width: int
    height: int
    place: Place
    questions: tuple[TextQuestion, ...]


def survey(split: str, *, path: str, largest: Mapping[str, float] | None = None, **_: object) -> Survey:
    """Counts the images that have a question. Raises ``InputError`` for a missing or damaged file."""
    return Survey(path, len(_pictures(path, split, _bounds(largest))))


def reads(split: str, items: int, *, path: str, **how: Any) -> Iterator[Path]:
    """The annotations, and the images of the first items."""
    yield Path(path)
    if Path(path).is_file():
        found = _pictures(path, split, _bounds(how.get("largest")))
        yield from (_folder(path) / f"{picture.id}.jpg" for picture in found[:items])


def generate(
    seed: int,
    item: int,
    split: str,
    *,
    path: str,
    largest: Mapping[str, float] | None = None,
    form: str = "answer",
) -> Item:
    """Returns one question about image number ``item`` among the images with small text, turned in way ``item`` modulo
    five. ``path`` is the file of annotations; the images lie beside ``gt`` in a folder named like that file.

    Raises:
        RowProblem: an image that is missing or damaged, or has another size than its annotation.
        InputError: a damaged file of annotations, or too few images.
    """
    del form
    found = _pictures(path, split, _bounds(largest))
    if item >= len(found):
        raise InputError(f"{path} has {len(found)} images with small text, and item {item} is asked for.")
    picture = found[item]
    rng = stream(seed, "mvtoolbench", split, item)
    kind = pick(rng, sorted({question.kind for question in picture.questions}))  # each kind as often as it can be
    chosen = pick(rng, [question for question in picture.questions if question.kind == kind])
    pixels = _read(picture, _folder(path))
    transform = TURNS[item % len(TURNS)]  # [P]: equal proportions
    box = moved_box(list(chosen.box), transform, picture.width, picture.height)
    return Item(
        id=item_id("mvtoolbench", split, item),
        task="mvtoolbench",
        pixels=np.ascontiguousarray(TRANSFORMS[transform](pixels)),
        question=chosen.question,
        tool_question=chosen.question,
        answer=chosen.answer,
        tool_answer=chosen.answer,
        truth={
            "rule": chosen.rule,
            "transform": transform,
            "boxes": [{"label": chosen.label, "box": box}],
            "kind": chosen.kind,
            "source": picture.id,
        },
        tools=(ROTATE, FLIP, ZOOM),
    )


def _folder(path: str) -> Path:
    """The folder of images: ``validation`` for ``gt/validation.jsonl.gz``."""
    file = Path(path)
    return file.parent.parent / file.name.partition(".")[0]


def _bounds(largest: Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((dict(LARGEST) | dict(largest or {})).items()))


def _read(picture: AnnotatedImage, folder: Path) -> np.ndarray:
    file, place = folder / f"{picture.id}.jpg", picture.place
    try:
        pixels = images.decode(file.read_bytes(), f"of {place}")
    except OSError as error:
        raise RowProblem(place, "no such image", f"{place}: its image {file} cannot be read ({error}).") from error
    except InputError as error:
        raise RowProblem(place, "an image that cannot be decoded", str(error)) from error
    height, width = pixels.shape[:2]
    if (width, height) != (picture.width, picture.height):
        raise RowProblem(
            place,
            "an image of another size",
            f"{place}: {file} has {width} x {height} pixels, and its boxes are of {picture.width} x {picture.height}.",
        )
    return pixels


@functools.lru_cache(maxsize=4)
def _pictures(path: str, split: str, largest: tuple[tuple[str, float], ...]) -> tuple[AnnotatedImage, ...]:
    """The images that have a question, in the order of the file; only their questions are held."""
    source = sources.open_source(path, split, rows="annotations")
    found: list[AnnotatedImage] = []
    for row in range(source.rows):
        try:
            entry = source.read(row)
            width, height = int(entry["image_width"]), int(entry["image_height"])
            if min(width, height) <= 0:
                raise ValueError(f"an image of {width} x {height} pixels")
            asked = tuple(questions(entry["paragraphs"], width * height, dict(largest)))
            name = str(entry["image_id"])
        except (RowProblem, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InputError(
                f"{source.place(row)} is not an annotation of HierText ({error}). Fetch {path} again."
            ) from error
        if asked:
            found.append(AnnotatedImage(name, width, height, source.place(row), asked))
    return tuple(found)


def questions(paragraphs: Sequence[Node], area: int, largest: Mapping[str, float]) -> Iterator[TextQuestion]:
    """All questions about the small annotations of one image whose words are legible and not vertical. What names a
    line or a paragraph occurs once in the image, so that each question has one answer."""
    lines = [line for paragraph in paragraphs for line in paragraph["lines"]]
    texts = [_words(paragraph["lines"]) for paragraph in paragraphs]
    first_of_line = Counter(words[0] for line in lines if (words := _words([line])))
    first, last = (Counter(words[end] for words in texts if words) for end in (0, -1))
    for line in lines:
        words = _words([line])
        if len(words) < 2 or not _clear([line]) or first_of_line[words[0]] > 1:
            continue
        named = f"the line beginning with ‘{words[0]}’"
        if _share(line, area) < largest["line"]:
            yield TextQuestion("line", f"What does {named} say?", " ".join(words), "judge", named, _box(line))
        for before, word in zip(words, line["words"][1:], strict=False):
            if words.count(before) == 1 and _share(word, area) < largest["word"]:
                asked = f"Which word comes after ‘{before}’ in {named}?"
                yield TextQuestion("word", asked, str(word["text"]), "exact", str(word["text"]), _box(word))
    for paragraph, words in zip(paragraphs, texts, strict=True):
        if len(words) < 3 or not _clear(paragraph["lines"]) or _share(paragraph, area) >= largest["paragraph"]:
            continue
        box = _box(paragraph)
        if last[words[-1]] == 1:
            named = f"the paragraph ending with ‘{words[-1]}’"
            for letter, count in sorted(Counter("".join(words).lower()).items()):
                if letter.isascii() and letter.isalpha():
                    asked = f"How many times does the letter ‘{letter}’ appear in {named}, capitals included?"
                    yield TextQuestion("letter", asked, str(count), "exact", named, box)
        if first[words[0]] == 1:
            named = f"the paragraph beginning with ‘{words[0]}’"
            for before, after in itertools.pairwise(words[1:]):
                if words.count(before) == 1:
                    asked = f"Which word follows ‘{before}’ in {named}?"
                    yield TextQuestion("retrieval", asked, after, "exact", named, box)


def _words(lines: Sequence[Node]) -> list[str]:
    return [str(word["text"]) for line in lines for word in line["words"]]


def _clear(lines: Sequence[Node]) -> bool:
    """True if every word can be read, and none stands upright."""
    return all(
        node["legible"] and not node["vertical"] and str(node["text"]).strip()
        for line in lines
        for node in (line, *line["words"])
    )


def _share(node: Node, area: int) -> float:
    """The area of an annotation's polygon as a share of the image (shoelace formula)."""
    x, y = np.asarray(node["vertices"], np.float64).T
    return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2 / area)


def _box(node: Node) -> tuple[float, float, float, float]:
    x, y = np.asarray(node["vertices"], np.float64).T
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())
