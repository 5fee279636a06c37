"""The commands that reproduce a paper (import, filter, sft, rl, eval), with the artifacts that each reads, and a table
of every figure before and after training, by seed, beside the paper's.

Data and filtering are done once. Seeds repeat only trained steps: sft if there is one, rl, and its evaluation.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from vtcli.benchmarks import files
from vtcli.benchmarks.benchmark import NOT_STATED, Benchmark
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.errors import ConfigError, InputError
from vtcli.runbook.book import ASKED, SEED, RunbookWords, StepEntry, expand, given_by_runbook, load, seeds, taken_by
from vtcli.runbook.missing import TINY, is_artifact, only_makes_data, require_taught, taught_by
from vtcli.runbook.newest import at
from vtcli.runbook.step import Step
from vtcli.store.artifacts import Artifact, ArtifactStore

PAPERS: Mapping[str, str] = {
    "toolsrl": "ToolsRL",
    "codev": "CodeV",
    "codevision": "CodeVision",
    "codedance": "CodeDance",
    "pyvision_image": "PyVision-RL",
    "pyvision_video": "PyVision-RL",
}
"""Papers as ``conf/benchmark`` names them, by recipe; no paper prints numbers of other recipes."""

MODELS: Mapping[str, str] = {"pyvision_image": "PyVision-Image", "pyvision_video": "PyVision-Video"}
"""The trained model of a recipe, for a paper with several."""


@dataclass(frozen=True)
class Reproduction:
    """A request to reproduce a paper. ``overrides`` go to every command that knows their section."""

    recipe: str
    scale: str
    model: str | None = None  # where training starts; None: the recipe's, or at scale tiny a model that sft makes
    data: str | None = None  # a dataset, or a name of conf/data (of --config-dir too); None: the recipe's
    demos: str | None = None  # demonstrations for sft
    judge: str | None = None  # the URL of an endpoint; None: the oracle
    judge_model: str | None = None
    seeds: tuple[int, ...] = (0,)
    benchmarks: Path | None = None  # folder with local copies; None: held-out rows of the data
    config_dir: Path | None = None
    name: str | None = None  # the beginning of the artifacts' names
    overrides: tuple[str, ...] = ()
    alone: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # by step or verb
    runbook: str = "reproduce"

    def __post_init__(self) -> None:
        known = [name for name in compose.options("recipe", self.config_dir) if not name.startswith("tiny_")]
        if self.recipe not in known:
            raise ConfigError(f"recipe '{self.recipe}': expected one of {', '.join(known)}")
        if self.scale not in compose.scales():
            raise ConfigError(f"SCALE={self.scale}: expected one of {', '.join(compose.scales())}")
        if self.judge and not self.judge_model:
            raise ConfigError(f"JUDGE={self.judge} needs JUDGE_MODEL=NAME: the name under which the endpoint serves it")
        if self.judge_model and not self.judge:
            raise ConfigError(f"JUDGE_MODEL={self.judge_model} needs JUDGE=URL: the endpoint that serves it")
        if self.benchmarks and not self.benchmarks.is_dir():
            raise ConfigError(f"BENCHMARKS={self.benchmarks}: there is no such folder; expected one with their files")
        own = ("model", "data", "judge", "judge.url", "judge.model", "scale", "recipe")
        for word in (*self.overrides, *itertools.chain(*self.alone.values())):
            if word.lstrip("+~").partition("=")[0] in own or given_by_runbook(word):
                raise ConfigError(
                    f"{word}: the runbook sets this for each command; leave it out (MODEL=, DATA= and DEMOS= name "
                    "inputs)"
                )
        if len(self.variant) > 1:
            raise ConfigError(f"variant={', '.join(self.variant)}: expected one; reproduce each variant separately")
        asked = [word for word in self.overrides if word.lstrip("+").startswith("benchmark=")]
        if asked and self.benchmarks is None and not self.validates:
            raise ConfigError(f"{asked[0]} needs BENCHMARKS=FOLDER: without it evaluations ask held-out rows")

    @property
    def prefix(self) -> str:
        return "-".join([self.name or "_".join([self.recipe, *self.variant]), self.scale])

    @property
    def variant(self) -> tuple[str, ...]:
        """The recipe's variant, if one is given; its artifacts have other names than the recipe's own."""
        words = (word.lstrip("+") for word in self.overrides)
        return tuple(word.partition("=")[2] for word in words if word.startswith("variant="))

    @property
    def request(self) -> RunbookWords:
        """The overrides by the steps that take them. Words about ``DATA`` go to the import, because other stages
        compose the recipe's data; benchmarks go to an rl that validates, else to the evaluations."""
        plain, alone = list[str](), dict(self.alone)
        for word in self.overrides:
            key = word.lstrip("+~").partition("=")[0]
            if self.lacks(word):
                continue
            one = "data" if key.startswith("data.") and self.data else ""
            one = ("policy" if self.validates else "eval") if key == "benchmark" else one
            if one:
                alone[one] = (*alone.get(one, ()), word)
            else:
                plain.append(word)
        return RunbookWords(tuple(plain), alone)

    @property
    def validates(self) -> bool:
        """True if the overrides set a validation of rl."""
        return any(word.startswith("rl.validate.every=") for word in self.overrides)

    @property
    def given(self) -> bool:
        """True if ``data`` is an artifact."""
        return bool(self.data) and is_artifact(str(self.data))

    @property
    def printed(self) -> dict[str, dict[str, Benchmark]]:
        """The files of ``conf/benchmark`` with benchmarks for which the paper prints its own numbers."""
        known, paper, found = shipped(), PAPERS.get(self.recipe), dict[str, dict[str, Benchmark]]()
        for path in sorted((compose.folder() / "benchmark").glob("*.yaml")):
            of_file = {name: known[name] for name in yaml.safe_load(path.read_text())}
            rows = [row for one in of_file.values() for row in one.published if row.paper == paper]
            if any(MODELS.get(self.recipe, "") in row.model for row in rows):
                found[path.stem] = of_file
        return found

    def lacks(self, word: str) -> bool:
        """Returns True for an override about a benchmark of the paper without a copy in the folder: it is not asked."""
        section, _, name = word.lstrip("+~").partition("=")[0].partition(".")
        if section != "benchmark" or not name or self.benchmarks is None:
            return False
        there = self.copies()[0]
        return any(name.partition(".")[0] in of for choice, of in self.printed.items() if choice not in there)

    def copies(self) -> tuple[list[str], list[str]]:
        """Returns choices of ``benchmark=`` with all files in the folder, and a line for each incomplete one.

        Raises:
            ConfigError: no paper prints numbers of this recipe.
            InputError: the folder has none of them.
        """
        there, lines, printed = list[str](), list[str](), self.printed
        if not printed:
            raise ConfigError(f"BENCHMARKS={self.benchmarks}: no paper prints numbers of +recipe={self.recipe}")
        for choice, benchmarks in printed.items():
            try:
                for name, one in benchmarks.items():
                    files.locate(self.benchmarks or Path(), name, one)
                there.append(choice)
            except InputError as error:
                lines.append(str(error))
        if not there:
            raise InputError("\n  ".join(["BENCHMARKS: the folder has none of these.", *lines]))
        return there, lines


@functools.cache
def shipped() -> dict[str, Benchmark]:
    """Returns every benchmark of ``conf/benchmark``."""
    names = ",".join(compose.options("benchmark"))
    job = compose.load("eval", [f"benchmark=[{names}]", "eval.model=none"])
    return convert(job.values["benchmark"], dict[str, Benchmark], "benchmark")


OPTIONS = ("scale", "model", "data", "demos", "judge", "judge_model", "benchmarks", "name")


def read(argv: Sequence[str], own: Path | None, runbook: str = "reproduce") -> Reproduction:
    """Reads a command line: ``scale=paper model=NAME``, other options of ``OPTIONS``, and words for steps.

    Raises:
        ConfigError: an option or a word that a reproduction cannot have.
    """
    options, found = dict[str, str](), (0,)
    words, alone = list[str](), dict[str, tuple[str, ...]]()
    recipe = load(runbook, own).recipe
    for word in argv:
        key, _, value = word.partition("=")
        who, colon, rest = key.partition(":")
        if key == "recipe" and value:
            recipe = value if value in compose.options("recipe", own) else value.replace("-", "_")
        elif key == SEED:
            found = tuple(int(seed) for seed in seeds(value))
        elif key in OPTIONS and value and not (key == "judge" and "/" not in value):
            options[key] = value
        elif colon and rest:
            alone[who] = (*alone.get(who, ()), word.partition(":")[2])
        else:
            words.append(word)
    folder = options.pop("benchmarks", None)
    scale = options.pop("scale", TINY)
    return Reproduction(
        recipe, scale, seeds=found, benchmarks=Path(folder) if folder else None, config_dir=own,
        overrides=tuple(words), alone=alone, runbook=runbook, **options,
    )  # fmt: skip


def steps(asked: Reproduction) -> list[Step]:
    """Returns all commands, each after its inputs: the runbook ``reproduce``, with the request's inputs in
    place of steps.

    Raises:
        ConfigError: an override that no command takes, or that would change nothing.
    """
    flags = ("--config-dir", str(asked.config_dir)) if asked.config_dir else ()
    book, start = load(asked.runbook, asked.config_dir), _start(asked, flags)
    teach = asked.recipe if asked.demos else _teacher(asked, flags) if start is None else None
    made, words, results = dict(book.steps), dict(book.words), book.results
    words["all"] = (*words.get("all", ()), f"scale={asked.scale}")
    trained = book.axes[SEED].steps or ()
    if asked.given:
        made["data"] = str(asked.data)
    elif asked.data:
        words["data"] = (*words.get("data", ()), f"data={asked.data}")
    if asked.demos:
        made["demos"] = asked.demos
    if start and teach:
        words["base"] = (*words.get("base", ()), f"sft.model={start}")
        made["clean"] = _reading(made["clean"], {"filter.model": start})  # measures pass rates before sft
    elif start:  # all seeds start from one model, so they share one evaluation before training
        made |= {"base": start, "before": replace(_entry(made["before"]), name="{prefix}-before-s{seed}")}
        trained = tuple(step for step in trained if step not in ("base", "before"))
    if asked.benchmarks is not None:
        told = (f"benchmark=[{','.join(asked.copies()[0])}]", f"eval.benchmarks_in={asked.benchmarks}")
        for name in ("before", "report"):
            made[name] = _reading(made[name], {"eval.data": None})
            words[name] = (*words.get(name, ()), *told)
        if asked.validates:
            words["policy"] = (*words.get("policy", ()), f"rl.validate.benchmarks_in={asked.benchmarks}")
    for verb in ASKED if asked.judge else ():
        judge = ("judge=openai", f"judge.url={asked.judge}", f"judge.model={asked.judge_model}")
        words[verb] = (*words.get(verb, ()), *judge)
    axes = {**book.axes, SEED: replace(book.axes[SEED], values=asked.seeds, steps=trained)}
    book = replace(book, recipe=asked.recipe, teach=teach, prefix=asked.prefix, axes=axes, steps=made, words=words)
    found = expand(asked.runbook, book, replace(asked.request, results=results), flags).steps
    if asked.variant and asked.given and only_makes_data(next(s for s in found if s.verb == "rl").argv({})):
        raise ConfigError(
            f"variant={asked.variant[0]} only changes how data is made, and DATA={asked.data} is made already. "
            "Leave DATA= out, or give data that was made with it and no variant"
        )
    return found


def _entry(step: StepEntry | str) -> StepEntry:
    assert isinstance(step, StepEntry)
    return step


def _reading(step: StepEntry | str, inputs: Mapping[str, str | None]) -> StepEntry:
    """Returns a step with other inputs; None removes one."""
    kept = [word for word in _entry(step).words if word.partition("=")[0] not in inputs]
    return replace(_entry(step), words=(*kept, *(f"{key}={ref}" for key, ref in inputs.items() if ref is not None)))


def _start(asked: Reproduction, flags: tuple[str, ...]) -> str | None:
    """Returns the model that training starts from, or None if sft builds one."""
    if asked.model or asked.scale == TINY:
        return asked.model
    return str(at(_trained(asked, asked.scale, flags).values, "model.path"))


def _trained(asked: Reproduction, scale: str, flags: tuple[str, ...], *more: str) -> compose.Job:
    """Returns the configuration of rl at a scale."""
    request = asked.request
    alone = (*request.alone.get("rl", ()), *request.alone.get("policy", ()))
    own = [*(word for word in request.words if taken_by("rl", word)), *alone]
    return compose.load("rl", [f"+recipe={asked.recipe}", f"scale={scale}", "rl.data=none:v1", *more, *own, *flags])


def _teacher(asked: Reproduction, flags: tuple[str, ...]) -> str:
    """Returns the recipe that teaches a tiny model the paper's environment.

    Raises:
        ConfigError: no recipe does.
    """
    maker = taught_by(asked.recipe, asked.config_dir)
    values = compose.load("sft", [f"+recipe={maker}", f"scale={TINY}", "sft.data=none:v1", *flags]).values
    trained = _trained(asked, TINY, flags, "rl.model=none:v1")
    require_taught(maker, values, trained.values, "MODEL")
    return maker


BENCHMARKS = "benchmarks.json"
HELD_OUT = {
    "answer.all.accuracy": "answer accuracy",
    "answer.all.faithful": "right and faithful",
    "answer.all.faithful_if_right": "faithful, of the right",
    "answer.all.calls": "tool calls a question",
    "tool.all.tool_reward": "tool reward",
}
"""Figures of held-out rows, which every paper argues from and none prints."""


@dataclass
class Line:
    """A figure in shares of one, of the base model and after training, by seed. If all seeds start from one model,
    ``before`` has only the first seed. ``printed`` are the paper's rows."""

    name: str
    printed: str
    before: dict[int, float]
    after: dict[int, float]


def lines(asked: Reproduction, made: Mapping[str, str], home: Path) -> list[Line]:
    """Returns the lines of all existing reports, in order. Raises ``InputError`` if there are none."""
    store, found = ArtifactStore(home), dict[str, Line]()
    for makes, ref in made.items():
        kind, _, seed = makes.removeprefix(f"{asked.prefix}-").partition("-s")
        if kind not in ("before", "report") or not store.has(makes):
            continue
        for name, value, printed in _figures(store.resolve(ref, "report", verify=False), PAPERS.get(asked.recipe)):
            line = found.setdefault(name, Line(name, printed, {}, {}))
            (line.before if kind == "before" else line.after)[int(seed)] = value
    if not found:
        raise InputError(f"{home} has no report of {asked.prefix}: the same command without --table makes them")
    return list(found.values())


def _figures(report: Artifact, paper: str | None) -> Iterator[tuple[str, float, str]]:
    """Yields name, value and the paper's number of each figure of a report."""
    path = report.path / BENCHMARKS
    if not path.is_file():
        for key, name in HELD_OUT.items():
            if isinstance(value := report.manifest.summary.get(key), int | float):
                yield name, float(value), ""
        return
    results: Mapping[str, Any] = json.loads(path.read_text())
    for result in results.values():
        for figure in result["figures"]:
            rows = [row for row in figure["published"] if row["paper"] == paper]
            if rows:
                printed = ", ".join(_printed(row) for row in rows)
                yield f"{result['title']}, {figure['figure']} ({figure['score']})", float(figure["value"]), printed


def _printed(row: Mapping[str, Any]) -> str:
    """Returns model and number of a printed row, and its scoring if the paper states it."""
    scored = row.get("scored", NOT_STATED)  # reports of older versions have none
    return f"{row['model']} {row['printed']:g}" + ("" if scored == NOT_STATED else f" (by {scored})")


def markdown(asked: Reproduction, found: list[Line]) -> str:
    """Returns the lines as a table in Markdown, with shares as percent if the paper prints a number."""
    seeds = sorted({seed for line in found for seed in line.after})
    head = ["figure", "the paper prints", "before", *(f"seed {seed}" for seed in seeds), "mean"]
    rows = [head, ["---"] * 2 + ["--:"] * (len(head) - 2)]
    for line in found:
        unit = 100 if line.printed else 1

        def shown(value: float | None, unit: int = unit) -> str:
            return "–" if value is None else f"{unit * value:.1f}" if unit == 100 else f"{value:.3f}"

        begun = {seed: value for seed, value in line.before.items() if seed in line.after} or line.before
        cells = [shown(_mean(list(begun.values()))), *(shown(line.after.get(seed)) for seed in seeds)]
        rows.append([line.name, line.printed or "–", *cells, shown(_mean(list(line.after.values())))])
    title = f"# {PAPERS.get(asked.recipe, asked.recipe)}, scale {asked.scale}, seeds {', '.join(map(str, seeds))}"
    note = "Decoding, judge and model differ from the paper's: the report of each seed says how."
    return "\n".join([title, "", *(f"| {' | '.join(row)} |" for row in rows), "", note, ""])


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
