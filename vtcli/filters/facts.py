"""Facts of rows, pass rates, and the form of a rule: its inputs and its outcome."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from vtcli.schema import Json, Sample
from vtcli.store import encoded, images, parquet

Outcome = Literal["right", "wrong", "unjudged", "broken"]
"""Of one rollout. ``unjudged``: the judge gave no verdict; ``broken``: our fault. Neither is part of a rate."""

SHORT = 16
"""Characters. Shorter answers repeat in many rows, so they are interned."""


@dataclass(frozen=True, slots=True)
class RowFacts:
    """One row of a Parquet file, without its pixels."""

    file: str  # the Parquet file's name without its ending
    index: int  # among its usable rows
    id: str
    form: str  # "tool" | "answer" | "demo"
    question: str  # of a demonstration: its user turns
    answer: str  # of a demonstration: its last turn
    sizes: tuple[tuple[int, int], ...]  # width and height of the images, pixels, upright
    media: tuple[str, ...]  # sha256 of the images' bytes, then the videos' names, which are sha256 too
    content: str  # sha256 of all that a rollout depends on, the same in every dataset that has the row

    @property
    def key(self) -> tuple[str, str]:
        return self.file, self.id


@dataclass(frozen=True, slots=True)
class PassRate:
    """The rollouts of one question under one policy, in the order of their seeds."""

    content: str  # ``RowFacts.content``
    outcomes: tuple[Outcome, ...]
    answers: tuple[str | None, ...] = ()  # of each rollout; None without an answer
    asked: tuple[bool, ...] = ()  # whether a judge was asked about the rollout

    @property
    def right(self) -> int:
        return self.outcomes.count("right")

    @property
    def judged(self) -> int:
        return self.right + self.outcomes.count("wrong")

    @property
    def rate(self) -> float | None:
        """None without a verdict, which is not zero."""
        return self.right / self.judged if self.judged else None

    @property
    def rival(self) -> str | None:
        """The most frequent answer, if the question's rule finds it wrong. Right answers count as one and win a tie.
        None also if no rollout has an answer.

        >>> PassRate("", ("wrong", "wrong", "right"), ("Two", "two ", "3")).rival
        'Two'
        """
        given = [a.strip() for o, a in zip(self.outcomes, self.answers, strict=False) if o == "wrong" and a]
        counts = Counter(text.casefold() for text in given)
        most = max(counts.values(), default=0)
        return next(t for t in given if counts[t.casefold()] == most) if most > self.right else None


PassRates = Mapping[tuple[str, str], PassRate]
"""By ``RowFacts.key``."""


ImageHashes = Mapping[str, bytes]
"""32 bytes (``hashing``) by the sha256 of an image, see ``RowFacts.media``."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A held-out question, which no row may be near."""

    source: str  # of the benchmark's name, or the artifact's and its file's
    id: str
    question: str
    image_hashes: tuple[tuple[bytes, ...], ...]  # of each image as it is, turned and mirrored


References = Mapping[tuple[str, str], Reference]
"""By source and id."""


DemoMessage = Mapping[str, str]
"""``role`` and ``content``."""

DemoMessages = Mapping[tuple[str, str], Sequence[DemoMessage]]
"""Of demonstrations, by ``RowFacts.key``."""

Samples = Mapping[tuple[str, str], Sample]
"""Questions with their truth, without their images, by ``RowFacts.key``."""


@dataclass(frozen=True, slots=True)
class DemoSignals:
    """Signals of the trajectory that a demonstration was made from. Those of code are of operations that the sandbox
    repeated, so nothing here is a mere claim of the teacher."""

    id: str
    values: Mapping[str, Json]


DemoFacts = Mapping[tuple[str, str], DemoSignals]
"""Of a teacher's demonstrations, by ``RowFacts.key``. Demonstrations of scripts or of other sets have none."""


@dataclass(frozen=True, slots=True)
class Match:
    """The reason to drop a row that resembles another one."""

    why: str
    source: str  # file of the same data, or name of the benchmark or artifact
    id: str

    def __str__(self) -> str:
        return self.why


Reason = str | Match


class Rule(Protocol):
    """Returns for every row the reason to drop it, or None. A rule also receives the facts that it has parameters for:
    ``pass_rates``, ``plain_rates`` (without tools), ``image_hashes``, ``references``, ``messages``, ``samples``,
    ``taught``, ``judgements``. A rule of rates alone must judge each row by itself, because its rollouts end once its
    verdict is certain. A rule that reads another fact too gets all rollouts."""

    def __call__(self, rows: Sequence[RowFacts]) -> Sequence[Reason | None]: ...


def facts_of(table: parquet.ParquetTable, part: range | None = None) -> Iterator[RowFacts]:
    """Yields the facts of every usable row of a file of samples or demonstrations, or of a part of its rows."""
    file = table.path.stem
    # Newer files have a column of image facts, so that no image needs to be read here.
    columns = [name for name in table.columns if name != "images"] if encoded.COLUMN in table.columns else []
    shared: dict[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = {}
    for index, row in enumerate(table.rows(*columns, part=part), part.start if part else 0):
        shas, sizes = _images(row, table.path)
        media = [*shas, *(video["video"] for video in row.get("videos") or ())]
        form, question, answer = _texts(row)
        yield RowFacts(
            file=file,
            index=index,
            id=table.ids[index],
            form=sys.intern(form),  # a million rows share these
            question=question,
            answer=sys.intern(answer) if len(answer) < SHORT else answer,
            sizes=shared.setdefault(sizes, sizes),
            media=tuple(sys.intern(sha) for sha in media),  # several rows may show one image
            content=_content(row, media),
        )


def _images(row: Mapping[str, Any], path: Path) -> tuple[list[str], tuple[tuple[int, int], ...]]:
    """Returns sha256 and sizes of a row's images. Reads no image if the row has the column of facts."""
    if (facts := row.get(encoded.COLUMN)) is not None:
        return [fact["sha256"] for fact in facts], tuple((fact["width"], fact["height"]) for fact in facts)
    pngs = [image["bytes"] for image in row["images"] or ()]
    where = f"of row {row['id']!r} in {path}"
    return [hashlib.sha256(png).hexdigest() for png in pngs], tuple(images.size(png, where) for png in pngs)


def _texts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns form, question and answer."""
    if "messages" not in row:
        info = row["extra_info"]
        return info["form"], info["question"], info["answer"]
    messages = row["messages"]
    asked = "\n".join(message["content"] for message in messages if message["role"] == "user")
    return "demo", asked, messages[-1]["content"]


def _content(row: Mapping[str, Any], media: Sequence[str]) -> str:
    # ``index`` and ``split`` differ between datasets with the same row, and rollouts do not depend on them.
    info = {k: v for k, v in (row.get("extra_info") or {}).items() if k not in ("index", "split")}
    value = [row["id"], row.get("ability"), info, row.get("messages"), media]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
