"""A map: conditions under which a claim may hold, and ways to train that are compared in each. ``conf/map`` has them.

A cell is one value of every axis. Each step makes one artifact of its own name, which has the values of those axes that
it depends on. So cells share what no axis changes, and what exists already is found and not made again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vtcli.cli.reproduction.rows import first_truth
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.errors import ConfigError
from vtcli.runbook.missing import TINY
from vtcli.runbook.step import Step
from vtcli.runbook.verbs import stage_parts
from vtcli.statistics.rows import MEASURES
from vtcli.store.models import SHIPPED

AxisValue = int | float | str

BEFORE = "before"
"""In place of an arm: the model before training."""

STEPS: Mapping[str, tuple[str, ...]] = {
    "taught": (),
    "seen": ("taught",),
    "demos": (),
    "data": (),
    "base": ("demos", "seen"),
    "before": ("base", "data"),
    "policy": ("base", "data"),
    "report": ("policy",),
}
"""Steps of a map in order, with those whose artifacts they read.

``taught`` and ``seen`` are demonstrations and a model that sees, once for all cells. ``demos`` and ``base`` teach it
tool use in a cell, ``before`` evaluates it, and ``policy`` and ``report`` train and evaluate an arm.
"""


@dataclass(frozen=True)
class Axis:
    """A condition. ``words`` are overrides by step, where ``{}`` is the value; ``cases`` are those of one value."""

    label: str
    values: tuple[AxisValue, ...]
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    cases: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict[str, Mapping[str, tuple[str, ...]]])
    paper: AxisValue | None = None  # the value nearest to the paper's setting, marked in the figure

    def __post_init__(self) -> None:
        if unknown := self.cases.keys() - set(map(str, self.values)):
            raise ConfigError(f"cases: {', '.join(sorted(unknown))} is no value; expected of {self.values}")
        if not self.values:
            raise ConfigError("values: none is there; expected one at least")
        names = [value for value in self.values if isinstance(value, str)]
        if 0 < len(names) < len(self.values):
            raise ConfigError(
                f"values: {', '.join(names)} among numbers is text; expected numbers alone or names alone. YAML reads "
                "1e-3 as text: write 1.0e-3"
            )
        numbers = not names and not isinstance(self.paper, str)  # a number may lie between two values
        if self.paper is not None and not numbers and self.paper not in self.values:
            raise ConfigError(f"paper: {self.paper} is no value; expected of {self.values}")

    @property
    def steps(self) -> set[str]:
        """The steps that the condition changes."""
        return {*self.words, *(step for words in self.cases.values() for step in words)}

    def overrides(self, step: str, value: AxisValue) -> Iterator[str]:
        """The overrides of a step at a value."""
        yield from (word.replace("{}", str(value)) for word in self.words.get(step, ()))
        yield from self.cases.get(str(value), {}).get(step, ())


@dataclass(frozen=True)
class Arm:
    """A way to train: another recipe than the map's, other overrides, or other data by overrides of ``vtcli synth``."""

    recipe: str | None = None
    words: tuple[str, ...] = ()
    data: tuple[str, ...] = ()  # all arms are evaluated on the map's own


@dataclass(frozen=True)
class Map:
    """A comparison of arms over a grid. The first arm is the one that the claim is about."""

    title: str
    recipe: str  # of data, training and evaluation
    arms: Mapping[str, Arm]
    measures: tuple[str, ...]  # of the reports: FORM.TASK.MEASURE, and causal.TASK.CONDITION of their probe
    axes: Mapping[str, Axis] = field(default_factory=dict[str, Axis])
    teach: str | None = None  # recipe of the demonstrations; None: the base model that comes with the package, as it is
    start: str | None = None  # shipped: the base model of the package, taught in each cell; seen: one of the map's own
    by: str | None = None  # a property of questions as the figure's axis: difficulty, task, orientation
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # overrides by step

    def __post_init__(self) -> None:
        if not self.arms or not self.measures:
            raise ConfigError("arms, measures: expected one at least of each")
        if BEFORE in self.arms:
            raise ConfigError(f"arms: {BEFORE} is the model before training; give this arm another name")
        if self.start not in (None, "shipped", "seen"):
            raise ConfigError(f"start: {self.start} is not known; expected shipped, seen or null")
        if len(self.axes) > (1 if self.by else 2):
            raise ConfigError(f"axes: {', '.join(self.axes)} are too many; a figure shows two, and by is one of them")
        if self.by not in (None, "difficulty", "task", "orientation"):
            raise ConfigError(f"by: {self.by} is not known; expected difficulty, task, orientation or null")
        for where, steps in (("words", set(self.words)), *((f"axes.{n}", a.steps) for n, a in self.axes.items())):
            if unknown := steps - STEPS.keys():
                raise ConfigError(f"{where}: {', '.join(sorted(unknown))} is no step; expected of {', '.join(STEPS)}")
        if self.start and not self.teach:
            raise ConfigError(f"start: {self.start} is where teaching begins; name the recipe that teaches: teach")
        made = {"data", "before", "policy", "report", *(("demos", "base") if self.teach else ())}
        made |= {"taught", "seen"} if self.start == "seen" else set()
        worded = set(self.words).union(*(axis.steps for axis in self.axes.values()))
        if idle := worded - made:
            raise ConfigError(
                f"words of {', '.join(sorted(idle))} change nothing, as this map has no such step: demos and base come "
                "with teach, taught and seen with start: seen"
            )
        for measure in self.measures:
            if self.by and measure.startswith("causal."):
                raise ConfigError(f"measures: {measure}: a share of all questions cannot stand by {self.by}")
            if not re.fullmatch(r"(answer|tool|causal)\.\w+\.\w+", measure):
                raise ConfigError(
                    f"measures: {measure}: expected FORM.TASK.MEASURE, such as answer.all.accuracy, or "
                    "causal.TASK.CONDITION of a probe"
                )
            form, _, name = measure.split(".")
            if form != "causal" and name not in MEASURES:
                raise ConfigError(f"measures: {measure}: {name} is not measured; expected of {', '.join(MEASURES)}")


@dataclass(frozen=True)
class ReportPlace:
    """The places of a report in a map. ``arm`` is None before training."""

    cells: tuple[tuple[AxisValue, ...], ...]
    arm: str | None
    seed: int


@dataclass(frozen=True)
class MapPlan:
    """The commands of a map in order, and the place of every report by its artifact's name."""

    commands: list[Step]
    places: dict[str, ReportPlace]


def load(name: str, own: Path | None = None) -> Map:
    """Reads the map ``name`` of ``conf/map``, or of a user's own folder.

    Raises:
        ConfigError: there is no such map, or a value in it is wrong.
    """
    known = compose.options("map", own)
    if name not in known:
        raise ConfigError(f"map '{name}': expected one of {', '.join(known)}")
    folder = own if own and (own / "map" / f"{name}.yaml").is_file() else compose.folder()
    path = folder / "map" / f"{name}.yaml"
    try:
        return convert(yaml.safe_load(path.read_text()), Map, f"map.{name}")
    except yaml.YAMLError as error:
        raise ConfigError(f"map '{name}': {path} is no YAML: {error}") from error


def plan(name: str, asked: Map, seeds: tuple[int, ...], more: tuple[str, ...] = ()) -> MapPlan:
    """All commands, cell by cell, so that each cell is whole before the next begins. ``more`` go to all commands.

    Raises:
        ConfigError: one of ``more`` is about what cells or arms differ in.
    """
    _refuse_varied(name, asked, more)
    found = MapPlan([], {})
    for seed in seeds:
        for cell in itertools.product(*(axis.values for axis in asked.axes.values())):
            _Cell(name, asked, cell, seed, more, found).add_all()
    return found


def require_measured(asked: Map, commands: Sequence[Step]) -> None:
    """Raises ``ConfigError`` for a measure or a property ``by`` that no question of the reports will have."""
    reports = _distinct(command for command in commands if "eval.baseline" in command.reads)
    names = {command.reads["eval.data"] for command in reports}
    data = [_job(command) for command in _distinct(command for command in commands if command.makes in names)]
    evals = [_job(command).values for command in reports]
    forms = {form for values in evals for form in values["eval"]["forms"]}
    probed = {name for values in evals for name in (values.get("probe") or {}).get("conditions", ())}
    tasks = {(name, form) for job in data for name, task in job.values["data"]["tasks"].items()
             for form in forms & set(job.values["synth"]["forms"]) & set(task.get("forms") or forms)}  # fmt: skip
    for measure in asked.measures:
        form, task, name = measure.split(".")
        if form == "causal" and name not in probed:
            raise ConfigError(
                f"measures: {measure}: evaluations probe {', '.join(sorted(probed)) or 'nothing'}; words.report takes "
                f"probe=causal with {name} in probe.conditions"
            )
        form = "answer" if form == "causal" else form
        if form not in forms:
            raise ConfigError(f"measures: {measure}: evaluations ask the forms {', '.join(sorted(forms))} (eval.forms)")
        known = sorted(name for name, asked_in in tasks if asked_in == form)
        if task not in ("all", *known):
            raise ConfigError(f"measures: {measure}: {task} is not asked; expected all or one of {', '.join(known)}")
    key = {"difficulty": "difficulty", "orientation": "transform"}.get(asked.by or "")
    configs: list[Any] = [compose.build(stage_parts("synth")[0], job) for job in data] if key else []
    if key and not any(key in (first_truth(task) or {}) for config in configs for task in config.data.tasks.values()):
        raise ConfigError(f"by: no question of +recipe={asked.recipe} has a {asked.by}: leave by out, or ask others")


def _distinct(commands: Iterable[Step]) -> list[Step]:
    """Commands that differ in more than their name, seed and label."""
    own = ("name=", "seed=", "eval.label=")
    return list({tuple(w for w in each.arguments if not w.startswith(own)): each for each in commands}.values())


def _job(command: Step) -> compose.Job:
    return compose.load(command.verb, command.argv({}))


def _refuse_varied(name: str, asked: Map, more: tuple[str, ...]) -> None:
    """Raises ``ConfigError`` for an override that would come after one by which cells or arms differ."""
    own = [(f"arms.{label}", word) for label, arm in asked.arms.items() for word in (*arm.words, *arm.data)]
    for label, axis in asked.axes.items():
        steps = (*axis.words.values(), *(words for case in axis.cases.values() for words in case.values()))
        own += [(f"axes.{label}", word) for words in steps for word in words]
    for override, (place, word) in itertools.product(more, own):
        if any(_within(a, b) or _within(b, a) for a in _keys(override) for b in _keys(word)):
            raise ConfigError(
                f"{override}: {place} of the map {name} says {word}, and an override for every command would undo it. "
                "Leave it out, or write a map of your own (--config-dir)"
            )


def _keys(override: str) -> set[str]:
    """The key of an override, and the one that a phase's steps are taken from."""
    key = override.lstrip("+~").partition("=")[0]
    return {key, re.sub(r"rl\.phases\.\d+\.steps", "rl.steps_per_phase", key)}


def _within(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.")


@dataclass(frozen=True)
class _Cell:
    name: str
    asked: Map
    cell: tuple[AxisValue, ...]
    seed: int
    more: tuple[str, ...]
    plan: MapPlan

    def add_all(self) -> None:
        asked = self.asked
        data = self._add("data", "synth", asked.recipe, {})
        base = self._base()
        inputs = {"eval.data": data, "eval.model": base}
        baseline = self._add("before", "eval", asked.recipe, inputs, ("eval.label=before",))
        self._place(baseline, None)
        for label, arm in asked.arms.items():
            recipe = arm.recipe or asked.recipe
            own = self._add("data", "synth", recipe, {}, arm.data, label) if arm.data else data
            policy = self._add("policy", "rl", recipe, {"rl.data": own, "rl.model": base}, arm.words, label)
            inputs = {"eval.data": data, "eval.model": policy, "eval.baseline": baseline}
            report = self._add("report", "eval", asked.recipe, inputs, (f"eval.label={label}",), label)
            self._place(report, label)
            baseline = report if label == next(iter(asked.arms)) else baseline

    def _place(self, report: str, arm: str | None) -> None:
        """A report that no axis changes stands in every cell."""
        earlier = self.plan.places.get(report)
        cells = (*(earlier.cells if earlier else ()), self.cell)
        self.plan.places[report] = ReportPlace(cells, arm, self.seed)

    def _base(self) -> str:
        """The base model of the cell."""
        asked = self.asked
        start = {"sft.model": str(SHIPPED / "base" / "v1")} if asked.start == "shipped" else {}
        if asked.teach is None:
            return str(SHIPPED / "base" / "v1")
        if asked.start == "seen":
            taught = self._add("taught", "synth", asked.teach, {})
            start = {"sft.model": self._add("seen", "sft", asked.teach, {"sft.data": taught})}
        demos = self._add("demos", "synth", asked.teach, {})
        return self._add("base", "sft", asked.teach, {"sft.data": demos, **start})

    def _add(
        self, step: str, stage: str, recipe: str, inputs: Mapping[str, str], words: tuple[str, ...] = (), arm: str = ""
    ) -> str:
        """Adds a command, unless another cell has it. Returns the name of what it makes."""
        changed = set(_ancestors(step))
        cell = dict(zip(self.asked.axes, self.cell, strict=True))
        own = [f"{key}{value}" for key, value in cell.items() if changed & self.asked.axes[key].steps]
        makes = "-".join([self.name, f"{step}_{arm}" if arm else step, *own, f"s{self.seed}"])
        made = {command.makes for command in self.plan.commands}
        if makes in made:
            return makes
        varied = (w for key, value in cell.items() for w in self.asked.axes[key].overrides(step, value))
        told = (*self.asked.words.get(step, ()), *varied, *words, *self.more)
        given = tuple(f"{key}={ref}" for key, ref in inputs.items() if ref not in made)
        reads = {key: ref for key, ref in inputs.items() if ref in made}
        general = (f"+recipe={recipe}", f"name={makes}", f"scale={TINY}", f"seed={self.seed}")
        self.plan.commands.append(Step(stage, (*general, *told, *given), reads, makes))
        return makes


def _ancestors(step: str) -> Iterator[str]:
    yield step
    for parent in STEPS[step]:
        yield from _ancestors(parent)
