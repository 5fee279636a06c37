"""Samples of a dataset: those of a form that a run is trained on, and held-out ones that an evaluation asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow.parquet as pq

from vtcli.benchmarks.samples import WHOLE, Part
from vtcli.config.binding import KeyProblem
from vtcli.errors import InputError
from vtcli.foreign import print_lines
from vtcli.schema import Sample
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageStore
from vtcli.store.records import SampleSet

MAX_REPEATS = 64  # of a question in one step


@dataclass(frozen=True)
class Questions:
    """Samples, and the indices of the training questions among them."""

    samples: SampleSet
    kept: list[int]

    def few(self, count: int) -> Iterator[Sample]:
        """About ``count`` of those, evenly spread."""
        return (self.samples.load(i) for i in self.kept[:: max(1, len(self.kept) // count)])


def require_forms(data: Artifact, forms: Sequence[str]) -> Artifact:
    """The dataset. Raises ``InputError`` where it has no training questions of a form that a phase asks for."""
    files = [path for path in data.path.glob("*-train.parquet") if pq.read_metadata(path).num_rows]
    have = sorted(path.name.removesuffix("-train.parquet") for path in files)
    for form in forms:
        if have and form not in have:
            kind = "tool-supervised questions" if form == "tool" else "plain questions"
            wants = ", whose rows have boxes" if form == "tool" else ""
            raise InputError(
                f"{data.ref} has no {kind} (form {form}) in its training split, which a phase of this recipe trains "
                f"on; it has the form {', '.join(have)}. Give its tasks forms: [answer, tool]{wants}, or choose "
                f"+recipe={'deepeyes' if form == 'tool' else 'toolsrl'}, which needs none."
            )
    return data


def choose(data: Artifact, form: str, samples: SampleSet, tasks: Sequence[str] | None, prompts: int) -> Questions:
    """The training samples of a form, of ``tasks`` or of all.

    Raises:
        InputError: no row has such a task.
        KeyProblem: a step takes so many prompts that it would repeat a question too often.
    """
    names = samples.tasks() if tasks is not None else []
    kept = [*range(len(samples))] if tasks is None else [i for i, task in enumerate(names) if task in tasks]
    if not kept:
        raise InputError(f"{data.ref} has no row of {form}-train of the tasks {tasks or 'that it may have'}.")
    if prompts > MAX_REPEATS * len(kept):
        raise KeyProblem(
            "rl.prompts_per_step",
            f"is {prompts}, and {data.ref} has {len(kept)} rows of {form}-train: expected at most {MAX_REPEATS} "
            "times as many.",
        )
    return Questions(samples, kept)


@dataclass(frozen=True)
class DatasetQuestions:
    """Held-out questions of a dataset, form by form: ``limit`` of each, evenly spread; None: all."""

    data: Artifact
    forms: Sequence[str]
    split: str
    limit: int | None
    bad_rows: Literal["error", "skip"]

    @property
    def where(self) -> str:
        """The dataset's part, for errors."""
        return f"{self.data.ref}, split {self.split}, forms {list(self.forms)}"

    def load(self, images: ImageStore, part: Part = WHOLE) -> Iterator[Sample]:
        """A part of the questions, in order; their images are stored. Rows that are skipped are listed on standard
        error."""
        for form in self.forms:
            samples = SampleSet(self.data, form, self.split, images, self.bad_rows)
            print_lines(f"skipped: {line}" for line in samples.bad)
            count = min(len(samples), self.limit or len(samples))
            yield from (samples.load(i * len(samples) // count) for i in range(part.first, count, part.step))
