"""Type of a benchmark, as a file of conf/benchmark fills it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vtcli.benchmarks.aggregates import Aggregate, mean
from vtcli.config.bounds import at_least, shares
from vtcli.errors import ConfigError
from vtcli.schema import Sample
from vtcli.signals.rules import ScorerRule
from vtcli.signals.scorers.grade import Scorer
from vtcli.signals.scorers.table import SCORERS

ROW = "__row__"
"""Column of a row's number, from 0, in rows without ids."""


@dataclass(frozen=True, slots=True)
class Format:
    """One public form of a benchmark's files. Column names are those of that form; a missing one is refused.

    ``options`` are columns with one option each, or one column with a list. ``truth`` copies columns into the samples'
    truth, where aggregates and scorers find them; ``flags`` sets a name to whether a column has one of some values.
    """

    files: str  # a name or a pattern, below the folder
    id: str = "index"  # ROW: the row's number stands for an id
    question: str = "question"
    answer: str = "answer"  # a text, a number or a list of references
    listed: bool = False  # a text such as ["a", "b"] is a list of references, and not one answer that is a list
    images: tuple[str, ...] = ("image",)  # columns, those without an image in a row left out
    video: str | None = None  # path below the folder with columns in braces: "{dataset}/{scene_name}.mp4"
    options: tuple[str, ...] = ()
    truth: Mapping[str, str] = field(default_factory=dict[str, str])
    flags: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict[str, Mapping[str, tuple[str, ...]]])
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # rows that are asked
    last: bool = False  # rows are conversations, as lists: the last question and its answer count
    reads: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None = (
        None  # rows out of a row: benchmarks.forms
    )
    md5: str | None = None  # of the one file, as VLMEvalKit states it
    sha256: str | None = None  # of the one file, or of the sha256 of each of several in order


Turn = Literal["rot90", "rot180", "rot270", "hflip", "vflip"]


@dataclass(frozen=True, slots=True)
class Change:
    """Change of the images of a benchmark. ``share`` of the rows are turned by one of ``turns``, drawn by row and seed:
    a part of the rows keeps its turns. Images whose longer side is above ``above`` shrink to ``side``. ``only_large``
    leaves the other rows out. ``asked`` needs turns of all rows."""

    turns: tuple[Turn, ...] = ()
    share: float = 1.0
    above: int | None = None  # pixels
    side: int | None = None
    only_large: bool = False
    asked: bool = False  # the question is which turn it was: the turns are the options, in this order

    def __post_init__(self) -> None:
        shares(self, "share")


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampling that the benchmark itself asks for. None: as ``eval`` has it."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        at_least(0, self, *(n for n in ("temperature", "top_k") if getattr(self, n) is not None))


NOT_STATED = "not stated"
"""``PublishedRow.scored`` and ``.decoding`` where the paper is silent."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of a paper's table. ``values`` are by the names of our figures, as printed; ``scored`` is "judge" where
    a model ruled."""

    paper: str
    table: str  # its number, or a figure: "figure 4"
    model: str
    values: Mapping[str, float]
    scored: str = NOT_STATED
    decoding: str = NOT_STATED

    @property
    def judged(self) -> bool:
        """True where a judge scored it, and not a rule."""
        return "judge" in self.scored


@dataclass(frozen=True, slots=True)
class Benchmark:
    """``scores`` are names of scorers, the headline first; those of ``own`` come from outside. ``judged`` asks the
    run's judge as well: its verdict is a measure beside the scorers and replaces none."""

    title: str
    formats: tuple[Format, ...]
    rows: int | None  # of the whole benchmark; None: not known for certain
    scores: tuple[str, ...]
    prompt: str = "{question}"  # columns and {question}, {options} in braces
    options_prompt: str | None = None  # of rows with options; None: as the others
    shuffle: bool = False  # the order of options, by id and seed
    judged: bool = False
    folder: str | None = None  # of the local copy, beside the benchmark's own name: another one's
    change: Change | None = None  # of every image, before it is asked
    own: Mapping[str, Scorer] = field(default_factory=dict[str, Scorer])
    aggregate: Aggregate = mean
    cluster: str | None = None  # name in the truth: rows of one cluster are dependent
    generation: Generation = field(default_factory=Generation)
    source: str = ""
    hub: tuple[str, ...] = ()  # OWNER/NAME[@REVISION] of the sets on the hub whose files a format reads as they are
    licence: str = ""
    notes: str = ""
    published: tuple[PublishedRow, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.scores if name not in SCORERS and name not in self.own]
        if unknown or not self.scores:
            raise ConfigError(
                f"the benchmark {self.title!r} is scored by {unknown or 'nothing'} (scores); expected some of "
                f"{', '.join(SCORERS)}, or a name under own: {{NAME: {{_target_: module.function}}}}"
            )
        if not self.formats:
            raise ConfigError(
                f"the benchmark {self.title!r} has no formats: give the files and columns of one at least"
            )

    def scorer(self, name: str) -> Scorer:
        return self.own.get(name) or SCORERS[name]

    @property
    def rule(self) -> str:
        """``truth.rule`` of its samples."""
        return "judge" if self.judged else self.scores[0]


def own_rules(benchmarks: Mapping[str, Benchmark]) -> dict[str, Callable[[Sample, str], tuple[float, int]]]:
    """Scorers from outside, as rules for the signals."""
    return {name: ScorerRule(scorer) for b in benchmarks.values() for name, scorer in b.own.items()}


OTHERS = "others"
"""Key of ``eval.generation`` for benchmarks without one of their own."""


def generation_of(
    task: str | None, benchmarks: Mapping[str, Benchmark], by_recipe: Mapping[str, Generation]
) -> Generation:
    """Sampling of a task: by a recipe for its benchmark or for others, else by the benchmark's file."""
    if task is None or task not in benchmarks:
        return Generation()
    return by_recipe.get(task) or by_recipe.get(OTHERS) or benchmarks[task].generation


def named(values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The names, or all. Raises ``ConfigError`` for an unknown name."""
    if missing := [name for name in names if name not in values]:
        raise ConfigError(f"there is no benchmark {', '.join(missing)}; there are {', '.join(sorted(values))}")
    return list(names) or sorted(values)
