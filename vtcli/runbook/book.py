"""Runbooks: sequences of commands in ``conf/runbook``, and their expansion over axes into steps.

A word such as ``rl.data=data``, whose value is the name of another step, reads the artifact of that step. An axis has
values with words for some steps. These steps, and the steps that read them, are repeated for each value; cells share
the others. Every step makes one artifact, named after the runbook, the step and the values of its axes.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, cast

import yaml

from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.errors import ConfigError
from vtcli.runbook.step import STAGES, Step
from vtcli.runs.run import SECTIONS
from vtcli.statistics.rows import MEASURES
from vtcli.store.models import SHIPPED

AxisValue = int | float | str

SEED, ARM, ALL = "seed", "arm", "all"
ADD = "artifacts add"
"""A verb besides the stages: copies an artifact into the home. It takes a folder and no overrides."""

INPUTS = ("data", "model", "baseline", "trajectories")
"""Last parts of the keys of a stage's section that name its inputs."""

SAID = (
    "name",
    "seed",
    "eval.label",
    "eval.policy",
    "filter.shard",
    "synth.shard",
    "synth.merge",
    "synth.preview",
    "eval.shard",
)
"""Keys that a runbook sets for each of its commands, so that a user's word may not."""

ASKED = ("filter", "rl", "eval")
"""Stages that ask a judge."""

KNOWN_BY: Mapping[str, tuple[str, ...]] = {
    "synth": ("synth",),
    "sft": ("sft",),
    "rl": ASKED,  # filter and eval take its limits
    "filter": ("filter",),
    "eval": ("eval",),
    "benchmark": ("eval",),
    "probe": ("eval",),
    **dict.fromkeys(("judge", "judging", "signals", "engine"), ASKED),
}
"""Stages that take words of a section; words of other sections go to every command."""


VERBS = (*(stage for stage in STAGES if stage != "serve"), ADD)
"""Verbs of steps. A server is none, because it makes no artifact and does not end."""


@dataclass(frozen=True)
class StepEntry:
    """A step as a file writes it."""

    verb: str
    words: tuple[str, ...] = ()
    recipe: str | None = None  # None: the runbook's
    name: str | None = None  # of the artifact; None: PREFIX-STEP and the values of its axes
    after: tuple[str, ...] = ()  # steps that end well before this one starts, and which it does not read

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise ConfigError(f"verb: {self.verb} is not known; expected {', '.join(VERBS)}")


@dataclass(frozen=True)
class Axis:
    """A condition. ``words`` are overrides by step, in which ``{}`` is the value; ``cases`` are overrides of one value.

    ``steps`` are repeated for each value. None: the steps with words and their readers; for seeds all steps.
    """

    values: tuple[AxisValue, ...]
    label: str = ""  # in the figure; empty: the axis's name
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    cases: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict[str, Mapping[str, tuple[str, ...]]])
    steps: tuple[str, ...] | None = None
    paper: AxisValue | None = None  # the value nearest to the paper's setting, marked in the figure
    choice: bool = False  # of its values, such as sizes, a run takes one: not part of names, tables and figures

    def __post_init__(self) -> None:
        if self.choice and len(self.values) > 1:
            raise ConfigError(f"values: {self.values}: a choice has one value")
        if not self.values:
            raise ConfigError("values: empty; expected at least one")
        if twice := sorted({str(value) for value in self.values if self.values.count(value) > 1}):
            raise ConfigError(f"values: {', '.join(twice)} appears twice. Name each value once")
        names = [value for value in self.values if isinstance(value, str)]
        if 0 < len(names) < len(self.values):
            raise ConfigError(
                f"values: {', '.join(names)} among numbers is text; expected numbers alone or names alone. YAML reads "
                "1e-3 as text: write 1.0e-3"
            )

    @property
    def touched(self) -> set[str]:
        """The steps for which the condition has words."""
        return {*self.words, *(step for words in self.cases.values() for step in words)}

    def overrides(self, step: str, value: AxisValue) -> Iterator[str]:
        """Yields the overrides of a step at a value; those of the value's own case come last, and so count."""
        yield from (word.replace("{}", str(value)) for word in self.words.get(step, ()))
        yield from self.cases.get(str(value), {}).get(step, ())


@dataclass(frozen=True)
class Runbook:
    """A sequence of commands. A step that is text names an existing artifact or folder, which is not made."""

    title: str
    recipe: str
    steps: Mapping[str, StepEntry | str]
    teach: str | None = None  # recipe of demonstrations: {teach}
    prefix: str = "{name}"  # the beginning of the artifacts' names
    axes: Mapping[str, Axis] = field(default_factory=dict[str, Axis])
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # by step, verb, or all
    measures: tuple[str, ...] = ()  # of the reports: FORM.TASK.MEASURE, and causal.TASK.CONDITION of their probe
    by: str | None = None  # a property of questions as the figure's axis: difficulty, task, orientation
    reproduces: bool = False  # reproduces a paper: ``papers`` reads its command line

    def __post_init__(self) -> None:
        if not self.made:
            raise ConfigError("steps: empty; expected at least one")
        if len(self.conditions) > (1 if self.by else 2):
            raise ConfigError(f"axes: {', '.join(self.conditions)} are too many; a figure shows two, and by is a third")
        if self.by not in (None, "difficulty", "task", "orientation"):
            raise ConfigError(f"by: {self.by} is not known; expected difficulty, task, orientation or null")
        verbs = {entry.verb for entry in self.made.values()}
        places = {"words": set(self.words) - {ALL, *verbs}}
        places |= {f"steps.{name}.after": set(entry.after) - self.steps.keys() for name, entry in self.made.items()}
        for name, axis in self.axes.items():
            places[f"axes.{name}"] = axis.touched | set(axis.steps or ())
            if not axis.choice and (unknown := axis.cases.keys() - set(map(str, axis.values))):
                raise ConfigError(
                    f"axes.{name}.cases: {', '.join(sorted(unknown))} is not a value; expected of {axis.values}"
                )
            # A number may lie between two values and still has a place on the axis of a figure; a name has not.
            marks_name = isinstance(axis.paper, str) or isinstance(axis.values[0], str)
            if axis.paper is not None and marks_name and axis.paper not in axis.values:
                raise ConfigError(f"axes.{name}.paper: {axis.paper} is not a value; expected of {axis.values}")
        for place, steps in places.items():
            if unknown := steps - self.made.keys():
                raise ConfigError(
                    f"{place}: {', '.join(sorted(unknown))} is not a step; expected {', '.join(self.made)}"
                )
        try:
            # A step that names itself reads its own report of another arm (report|before), which is no circle.
            TopologicalSorter({name: self.reads(name) - {name} for name in self.made}).prepare()
        except CycleError as error:
            circle = " → ".join(reversed(error.args[1]))
            raise ConfigError(f"steps: {circle} is a circle: a step cannot read what it makes") from error
        if self.measures:
            self._require_measures()

    def _require_measures(self) -> None:
        reports = [name for name, entry in self.made.items() if entry.verb == "eval"]
        if not reports:
            raise ConfigError("measures: no step evaluates; expected one with the verb eval")
        if names := sorted({*reports} & {str(arm) for arm in self.arms}):
            raise ConfigError(f"axes.arm: {', '.join(names)} is a step as well; give this arm another name")
        for measure in self.measures:
            if not re.fullmatch(r"(answer|tool|causal)\.\w+\.\w+", measure):
                raise ConfigError(
                    f"measures: {measure}: expected FORM.TASK.MEASURE, such as answer.all.accuracy, or "
                    "causal.TASK.CONDITION of a probe"
                )
            form, _, name = measure.split(".")
            if form == "causal" and self.by:
                raise ConfigError(f"measures: {measure}: a share of all questions cannot stand by {self.by}")
            if form != "causal" and name not in MEASURES:
                raise ConfigError(f"measures: {measure}: {name} is not measured; expected of {', '.join(MEASURES)}")

    @property
    def made(self) -> dict[str, StepEntry]:
        """The steps that are commands."""
        return {name: entry for name, entry in self.steps.items() if isinstance(entry, StepEntry)}

    @property
    def chosen(self) -> tuple[str, ...]:
        """Axes from which a command line chooses one value, such as the size of a quickstart."""
        return tuple(name for name, axis in self.axes.items() if axis.choice)

    @property
    def conditions(self) -> dict[str, Axis]:
        """The axes of the table's cells: neither seeds nor arms nor a choice."""
        return {name: axis for name, axis in self.axes.items() if name not in (SEED, ARM, *self.chosen)}

    @property
    def arms(self) -> tuple[AxisValue, ...]:
        """The compared ways to train. The claim is about the first."""
        return self.axes[ARM].values if ARM in self.axes else ()

    @property
    def seeds(self) -> tuple[AxisValue, ...]:
        return self.axes[SEED].values

    @property
    def results(self) -> tuple[str, ...]:
        """The steps that no other step reads. All others are made because these read them, directly or not."""
        read = {other for step in self.made for other in self.reads(step) if other != step}
        return tuple(step for step in self.made if step not in read)

    def reads(self, name: str) -> set[str]:
        """The steps that a step's words name as inputs, at any value of any axis, and the steps that it comes after."""
        entry = self.made[name]
        words = [*entry.words, *self.words.get(name, ()), *self.words.get(entry.verb, ())]
        for axis in self.axes.values():
            words += [*axis.words.get(name, ()), *(w for case in axis.cases.values() for w in case.get(name, ()))]
        read = {step for word in words if _is_input(word) for step in _named(word) if step in self.steps}
        return read | {step for step in entry.after if step in self.made}

    def varied_by(self, name: str) -> tuple[str, ...]:
        """Returns the axes over which a step is repeated."""
        return tuple(axis for axis in self.axes if self._varies(axis, name))

    def _varies(self, axis: str, name: str) -> bool:
        steps = self.axes[axis].steps
        if steps is not None:
            return name in steps
        if axis == SEED or name in self.axes[axis].touched:
            return True
        # A reader of a step that varies varies with it, or two cells would share one artifact.
        return any(self._varies(axis, step) for step in self.reads(name) if step in self.made and step != name)


def _is_input(word: str) -> bool:
    key = word.partition("=")[0]
    return key.partition(".")[0] in SECTIONS and key.rpartition(".")[2] in INPUTS


def _named(word: str) -> list[str]:
    """Returns the names in the value of an input: ``policy`` of ``policy/phases/tools``, both of ``report|before``.

    >>> _named("eval.baseline=report|before"), _named("eval.model=policy/phases/tools")
    (['report', 'before'], ['policy'])
    """
    return [part.partition("/")[0] for part in word.partition("=")[2].split("|")]


@dataclass(frozen=True)
class ReportPlace:
    """The places of a report. ``arm`` is the arm that it evaluates, or the step's name."""

    cells: tuple[tuple[AxisValue, ...], ...]
    arm: str
    seed: int


@dataclass(frozen=True)
class Expansion:
    """The steps of a runbook in order, and the place of each report by its artifact's name."""

    steps: list[Step] = field(default_factory=list[Step])
    places: dict[str, ReportPlace] = field(default_factory=dict[str, ReportPlace])


def names(own: Path | None = None) -> list[str]:
    """Returns the runbooks of ``conf/runbook`` and of a user's folder, without those for others to build upon
    (``_``)."""
    return [name for name in compose.options("runbook", own) if not name.startswith("_")]


def load(name: str, own: Path | None = None) -> Runbook:
    """Reads a runbook and the files that it builds upon (``upon``).

    Raises:
        ConfigError: no runbook has that name, or a value in it is wrong.
    """
    if name not in (known := names(own)):
        raise ConfigError(f"runbook '{name}': expected one of {', '.join(known)}")
    values = _read(name, own, ())
    for part in ("steps", "axes"):
        entries: Any = values.get(part) or {}
        if not isinstance(entries, dict) or not all(isinstance(key, str) for key in cast("dict[Any, Any]", entries)):
            raise ConfigError(f"runbook '{name}': {part}: expected a section with names as keys, got {entries!r}")
    # null removes a step of the file that this one builds upon.
    values["steps"] = {step: each for step, each in (values.get("steps") or {}).items() if each is not None}
    values["axes"] = {SEED: {"values": [0]}, **(values.get("axes") or {})}
    return convert(values, Runbook, f"runbook.{name}")


def _read(name: str, own: Path | None, above: tuple[str, ...]) -> dict[str, Any]:
    found = own if own and (own / "runbook" / f"{name}.yaml").is_file() else compose.folder()
    path = found / "runbook" / f"{name}.yaml"
    if name in above or not path.is_file():
        raise ConfigError(f"runbook '{above[-1]}': upon: {name} {'forms a circle' if name in above else 'not found'}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"runbook '{name}': {path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"runbook '{name}': {path}: expected keys such as title, recipe and steps")
    values = cast("dict[str, Any]", listed(values))
    upon = values.pop("upon", None)
    return merged(_read(str(upon), own, (*above, name)), values) if upon else values


def listed(values: Any, words: bool = False) -> Any:
    """Converts words that a file writes as keys and values into a list of overrides.

    >>> listed({"words": {"eval": {"engine": "vllm_server", "eval.max_samples": 9}}})
    {'words': {'eval': ['engine=vllm_server', 'eval.max_samples=9']}}
    """
    if not isinstance(values, dict):
        return values
    mapping = cast("dict[str, Any]", values)
    if words and mapping and not any(isinstance(value, dict | list) for value in mapping.values()):
        return [
            f"{key}={json.dumps(value) if value in (None, True, False) else value}" for key, value in mapping.items()
        ]
    return {key: listed(value, words or key in ("words", "cases")) for key, value in mapping.items()}


def merged(base: Mapping[str, Any], own: Mapping[str, Any], words: bool = False) -> dict[str, Any]:
    """Lays ``own`` over ``base``, key by key. Words are appended to those of the base, because the last one counts. A
    step with another verb replaces the base's.

    >>> merged({"words": {"eval": ["a=1"]}, "measures": ["x"]}, {"words": {"eval": ["b=2"]}, "measures": ["y"]})
    {'words': {'eval': ['a=1', 'b=2']}, 'measures': ['y']}
    """
    found = dict(base)
    for key, value in own.items():
        before, inside = found.get(key), words or key in ("words", "cases")
        if (
            isinstance(before, dict)
            and isinstance(value, dict)
            and before.get("verb") == value.get("verb", before.get("verb"))
        ):
            found[key] = merged(cast("dict[str, Any]", before), cast("dict[str, Any]", value), inside)
        elif inside and isinstance(before, list) and isinstance(value, list):
            found[key] = [*cast("list[Any]", before), *cast("list[Any]", value)]
        else:
            found[key] = value
    return found


@dataclass(frozen=True)
class RunbookWords:
    """Words of a command line besides the runbook's name, for every step that knows them and for single steps."""

    words: tuple[str, ...] = ()
    alone: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # by step or verb
    results: tuple[str, ...] = ()  # of the unchanged runbook; empty: of the runbook itself


def choose(name: str, book: Runbook, argv: Sequence[str]) -> tuple[Runbook, RunbookWords]:
    """Applies a command line. ``AXIS=VALUES`` and ``STEP=ARTIFACT`` change the runbook. ``STEP:key=value`` and
    ``VERB:key=value`` go to single steps, other words to every step that knows their section.

    Raises:
        ConfigError: a value that an axis cannot have, or a word that the runbook sets itself or that would undo an
            axis.
    """
    words, alone, results = list[str](), dict[str, tuple[str, ...]](), book.results
    verbs = {entry.verb for entry in book.made.values()}
    for word in argv:
        key, _, value = word.partition("=")
        who, colon, rest = key.partition(":")
        if key in book.axes:
            book = _with_values(book, key, value)
        elif key == "recipe" and value:
            book = replace(book, recipe=value)
        # ``data=X`` may mean the step ``data`` or a file of conf/data: an artifact or a folder decides.
        elif key in book.steps and (not (compose.folder() / key).is_dir() or _is_there(value)):
            if axes := [each for each, axis in book.axes.items() if key in axis.touched | set(axis.steps or ())]:
                raise ConfigError(
                    f"{word}: the axis {axes[0]} changes how {key} is made, so no artifact can stand in its place; "
                    f"expected another step of {', '.join(book.made)}"
                )
            own = {step: words for step, words in book.words.items() if step != key}
            book = replace(book, steps={**book.steps, key: value}, words=own)
        elif colon and rest:
            if who not in book.made and who not in verbs:
                raise ConfigError(f"{word}: {who} is not a step; expected {', '.join((*book.made, *sorted(verbs)))}")
            alone[who] = (*alone.get(who, ()), word.partition(":")[2])
        else:
            words.append(word)
    for word in (*words, *itertools.chain(*alone.values())):
        if given_by_runbook(word):
            raise ConfigError(
                f"{word}: the runbook {name} sets this for each command; leave it out (STEP=ARTIFACT puts an existing "
                "artifact in place of a step)"
            )
        _refuse_undoing(name, book, word)
    return book, RunbookWords(tuple(words), alone, results)


def given_by_runbook(word: str) -> bool:
    """Returns True for a word that a runbook sets for each of its commands."""
    key = word.lstrip("+~").partition("=")[0]
    return key in SAID or key == "recipe" or _is_input(word)


def taken_by(verb: str, word: str) -> bool:
    """Returns True if the commands of a verb take a word of this section."""
    return verb in KNOWN_BY.get(word.lstrip("+~").partition("=")[0].partition(".")[0], (verb,))


def _with_values(book: Runbook, name: str, value: str) -> Runbook:
    axis = book.axes[name]
    texts = seeds(value) if name == SEED else value.replace(",", " ").split()
    numbers = name == SEED or not isinstance(axis.values[0], str)
    allowed = {*map(str, axis.values), *axis.cases}
    try:
        values = tuple(_number(text) if numbers else text for text in texts)
    except ValueError as error:
        raise ConfigError(f"{name}={value}: expected numbers, such as those of {axis.values}") from error
    if not numbers and (unknown := [text for text in texts if text not in allowed]):
        raise ConfigError(f"{name}={value}: {', '.join(unknown)} is not known; expected {', '.join(sorted(allowed))}")
    kept = {text: words for text, words in axis.cases.items() if name in book.chosen or text in texts}
    paper = axis.paper if numbers or axis.paper in values else None
    try:
        return replace(book, axes={**book.axes, name: replace(axis, values=values, cases=kept, paper=paper)})
    except ConfigError as problem:
        raise ConfigError(f"{name}={value}: {problem}") from None


def seeds(value: str) -> list[str]:
    """Returns the seeds of a word. Raises ``ConfigError`` for other texts and for a repeated seed."""
    texts = value.replace(",", " ").split()
    if not texts or not all(re.fullmatch("[0-9]+", text) for text in texts):
        raise ConfigError(f"seed={value}: expected numbers, such as seed=0,1,2")
    numbers = [int(text) for text in texts]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ConfigError(f"seed={value}: {', '.join(map(str, twice))} appears twice. Name each seed once")
    return texts


def _number(text: str) -> int | float:
    """Raises ``ValueError`` for a text that is not a finite number."""
    found = int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    if not math.isfinite(found):
        raise ValueError(text)
    return found


def _is_there(value: str) -> bool:
    """Returns True for ``NAME:vN``, ``NAME@latest`` and a folder."""
    return bool(re.search(r":v\d+|@latest", value)) or Path(value).is_dir()


def _refuse_undoing(name: str, book: Runbook, word: str) -> None:
    """Raises ``ConfigError`` for a word that would override a word by which cells or arms differ."""
    for axis, each in book.axes.items():
        if axis in book.chosen:
            continue
        steps = (*each.words.values(), *(words for case in each.cases.values() for words in case.values()))
        for own in itertools.chain(*steps):
            # Either way round: rl.optim={…} replaces rl.optim.lr, and rl.optim.lr changes rl.optim.
            if any(_within(a, b) or _within(b, a) for a in _keys(word) for b in _keys(own)):
                raise ConfigError(
                    f"{word}: axes.{axis} of the runbook {name} has {own}, and a word for every command would undo it. "
                    "Leave it out, or write a runbook with other values (--config-dir)"
                )


def _keys(override: str) -> set[str]:
    """Returns the key of an override, and the key from which a phase takes its steps."""
    key = override.lstrip("+~").partition("=")[0]
    return {key, re.sub(r"rl\.phases\.\d+\.steps", "rl.steps_per_phase", key)}


def _within(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.")


def expand(name: str, book: Runbook, request: RunbookWords | None = None, flags: tuple[str, ...] = ()) -> Expansion:
    """Returns all steps, cell by cell, so that each cell is complete before the next begins; inputs come first.

    Raises:
        ConfigError: two steps would make one artifact, an input names no step, or no step takes a word.
    """
    work = _Work(name, book, request or RunbookWords(), flags, Expansion())
    axes = sorted(book.axes, key=lambda axis: (axis == ARM) - (axis == SEED))  # seeds outermost, arms innermost
    results = [step for step in (work.request.results or book.results) if step in book.made]
    for values in itertools.product(*(book.axes[axis].values for axis in axes)):
        for step in results:
            work.add(step, dict(zip(axes, values, strict=True)))
    verbs = {step.verb for step in work.found.steps}
    if idle := [who for who, words in work.request.alone.items() if words and who not in (*book.made, *verbs)]:
        raise ConfigError(f"{', '.join(idle)}: no such step; expected {', '.join((*book.made, *sorted(verbs)))}")
    used = {word for step in work.found.steps for word in step.arguments}
    if unknown := [word for word in work.request.words if word not in used]:
        stages = ", ".join(sorted({step.verb for step in work.found.steps}))
        raise ConfigError(f"{' '.join(unknown)}: no command takes it; this runbook runs the stages {stages}")
    return work.found


@dataclass(frozen=True)
class _Work:
    name: str
    book: Runbook
    request: RunbookWords
    flags: tuple[str, ...]
    found: Expansion

    def add(self, step: str, place: Mapping[str, AxisValue]) -> str:
        """Adds the command of a step at a place, after the steps that it reads, unless it is there already. Returns the
        name of its artifact."""
        entry, axes = self.book.made[step], self.book.varied_by(step)
        cell = tuple(place[axis] for axis in self.book.conditions)
        # Axes that do not vary the step take their first value, so that all cells name the same artifact.
        place = {axis: value if axis in axes else self.book.axes[axis].values[0] for axis, value in place.items()}
        makes = self._filled(entry.name or self._name(step, axes, place), place)
        recipe, words, reads = entry.recipe or "{recipe}", list[str](), dict[str, str]()
        inputs = dict[str, str]()
        for word in self._words(step, entry, axes, place):
            key, _, value = word.partition("=")
            if key.lstrip("+") == "recipe":
                recipe = value
            elif _is_input(word):
                inputs[key] = value
            else:
                words.append(word)
        for key, value in inputs.items():
            ref, another = self._read(step, f"{key}={value}", place)
            if another:
                reads[key] = ref
            else:
                words.append(f"{key}={ref}")
        recipe = self._filled(recipe, place)
        general = (f"+recipe={recipe}", f"name={makes}", f"seed={place[SEED]}")
        arguments = (*general, *words, *self._given(step, entry, recipe))
        if entry.verb == ADD:
            home = [word.partition("=")[2] for word in self.request.words if word.startswith("home=")]
            arguments = (*words, *(("--home", home[-1]) if home else ()))
        after = tuple(self.add(other, place) for other in entry.after if other in self.book.made)
        self._keep(step, Step(entry.verb, arguments, reads, makes, after))
        if entry.verb == "eval":
            cells = self.found.places[makes].cells if makes in self.found.places else ()
            arm = str(place[ARM]) if ARM in axes else step
            self.found.places[makes] = ReportPlace(tuple(dict.fromkeys((*cells, cell))), arm, int(place[SEED]))
        return makes

    def _keep(self, name: str, step: Step) -> None:
        earlier = next((each for each in self.found.steps if each.makes == step.makes), None)
        # Cells share this step.
        if earlier is None:
            self.found.steps.append(step)
        elif earlier != step:
            raise ConfigError(
                f"steps.{name}.name: two commands with different words would make {step.makes}. Put {{seed}} and the "
                "axes into it, or give one value of each"
            )

    def _name(self, step: str, axes: Sequence[str], place: Mapping[str, AxisValue]) -> str:
        arm = f"_{place[ARM]}" if ARM in axes else ""
        cell = [f"{axis}{place[axis]}" for axis in self.book.conditions if axis in axes]
        return "-".join([self.book.prefix, f"{step}{arm}", *cell, *(["s{seed}"] if SEED in axes else [])])

    def _words(self, step: str, entry: StepEntry, axes: Sequence[str], place: Mapping[str, AxisValue]) -> list[str]:
        """Returns the runbook's words for a step at a place; the last word of a key counts."""
        if entry.verb == ADD:
            return [self._filled(word, place) for word in entry.words]
        words = [*entry.words, *(word for key in (ALL, entry.verb, step) for word in self.book.words.get(key, ()))]
        # Arms last: their words decide over those of a condition.
        for axis in sorted(axes, key=lambda name: name == ARM):
            words += self.book.axes[axis].overrides(step, place[axis])
        return [self._filled(word, place) for word in words]

    def _filled(self, word: str, place: Mapping[str, AxisValue]) -> str:
        shared = {"prefix": self.book.prefix, "recipe": self.book.recipe, "teach": self.book.teach}
        shared |= {"shipped": str(SHIPPED), "name": self.name}
        for key, value in (*shared.items(), *place.items()):
            word = word.replace(f"{{{key}}}", str(value))
        return word

    def _read(self, step: str, word: str, place: Mapping[str, AxisValue]) -> tuple[str, bool]:
        """Returns an input's artifact, and whether another step makes it. Of ``report|before`` the first arm reads
        ``before``, and the others read the first arm's ``report``, with which they are compared."""
        value = word.partition("=")[2]
        if "|" in value:
            other, own = value.split("|", 1)
            first = self.book.arms[0] if self.book.arms else None
            value, place = (own, place) if place.get(ARM) == first else (other, {**place, ARM: str(first)})
        name, slash, inside = value.partition("/")
        there = self.book.steps.get(name)
        if isinstance(there, StepEntry) and name == step and "|" not in word:
            raise ConfigError(f"steps.{step}: {word}: a step cannot read what it makes")
        if isinstance(there, StepEntry):
            return f"{self.add(name, place)}{slash}{inside}", True
        if there is not None:
            return f"{self._filled(there, place)}{slash}{inside}", False
        if not re.search(r"[:@/]", value):
            raise ConfigError(f"steps.{step}: {word} names no step; expected {', '.join(self.book.steps)}")
        return value, False

    def _given(self, step: str, entry: StepEntry, recipe: str) -> Iterator[str]:
        """Yields the words of the command line that a step takes."""
        yield from (word for word in self.request.words if self._takes(step, entry.verb, recipe, word))
        yield from self.request.alone.get(entry.verb, ())
        yield from self.request.alone.get(step, ())
        yield from self.flags

    def _takes(self, step: str, verb: str, recipe: str, word: str) -> bool:
        """Returns True if a step takes a word for all. Only the runbook's own recipe knows a variant."""
        key = word.lstrip("+~").partition("=")[0]
        if key == "variant":
            return recipe == self.book.recipe
        if key.startswith("synth.demos"):
            return any(word == f"sft.data={step}" for entry in self.book.made.values() for word in entry.words)
        return taken_by(verb, word)
