"""The commands that reproduce a paper: import, filter, sft, rl, eval; each with the artifacts that it reads.

Data and filtering are done once. The seeds repeat what is trained: sft where there is any, rl, and its evaluation.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from vtcli.benchmarks import files
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.errors import ConfigError, InputError
from vtcli.runbook.missing import TINY, is_artifact, only_makes_data, require_taught, taught_by
from vtcli.runbook.newest import at
from vtcli.runbook.step import Step

PAPERS: Mapping[str, str] = {
    "toolsrl": "ToolsRL",
    "codev": "CodeV",
    "codevision": "CodeVision",
    "codedance": "CodeDance",
    "pyvision_image": "PyVision-RL",
    "pyvision_video": "PyVision-RL",
}
"""Papers as ``conf/benchmark`` names them, by recipe; other recipes have no printed numbers of their own."""

MODELS: Mapping[str, str] = {"pyvision_image": "PyVision-Image", "pyvision_video": "PyVision-Video"}
"""The trained model of a recipe, where a paper has several."""

ASKED = ("filter", "rl", "eval")
"""Stages that ask a judge."""

KNOWN_BY: Mapping[str, tuple[str, ...]] = {
    "sft": ("sft",),
    "rl": ASKED,  # filter and eval take its limits
    "filter": ("filter",),
    "eval": ("eval",),
    "benchmark": ("eval",),
    "probe": ("eval",),
    **dict.fromkeys(("judge", "judging", "signals", "engine"), ASKED),
}
"""Stages whose commands take an override of a section; those of other sections go to every command."""


@dataclass(frozen=True)
class Reproduction:
    """A request for a paper. ``overrides`` go to every command that knows their section."""

    recipe: str
    scale: str
    model: str | None = None  # what training starts from; None: the recipe's, or at scale tiny one that sft makes
    data: str | None = None  # a dataset, or a name of conf/data (of --config-dir too); None: the recipe's
    demos: str | None = None  # demonstrations for sft
    judge: str | None = None  # the URL of an endpoint; None: the oracle
    judge_model: str | None = None
    seeds: tuple[int, ...] = (0,)
    benchmarks: Path | None = None  # folder with local copies; None: held-out rows of the data
    config_dir: Path | None = None
    name: str | None = None  # how the artifacts' names begin
    overrides: tuple[str, ...] = ()

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
        refuse(self.overrides, (*SAID, "model", "data", "judge", "judge.url", "judge.model"), "vtcli reproduce")
        refuse(self.overrides, INPUTS, "vtcli reproduce", " (MODEL=, DATA= and DEMOS= name inputs)")
        if len(self.variant) > 1:
            raise ConfigError(f"variant={', '.join(self.variant)}: expected one; each is a reproduction of its own")
        asked = [word for word in self.overrides if word.lstrip("+").startswith("benchmark=")]
        if asked and self.benchmarks is None and not self.validates:
            raise ConfigError(f"{asked[0]} needs BENCHMARKS=FOLDER: else evaluations ask held-out rows of the data")

    @property
    def prefix(self) -> str:
        return "-".join([self.name or "_".join([self.recipe, *self.variant]), self.scale])

    @property
    def variant(self) -> tuple[str, ...]:
        """The variant of the recipe, where one is given: its artifacts are not those of the recipe itself."""
        words = (word.lstrip("+") for word in self.overrides)
        return tuple(word.partition("=")[2] for word in words if word.startswith("variant="))

    def tells(self, name: str, stage: str, recipe: str, word: str) -> bool:
        """True where the command of a stage takes an override. A variant is known to the paper's own recipe alone,
        ``DATA`` to the import, and benchmarks to an rl that validates."""
        key = word.lstrip("+~").partition("=")[0]
        if key == "variant":
            return recipe == self.recipe
        if key.startswith("synth.demos"):
            return name == "demos"
        if key.startswith("data.") and self.data:  # the other stages compose the recipe's own
            return name == "data"
        if key == "benchmark" and (stage == "rl" or self.validates):  # evaluations ask all copies, or rows of the data
            return stage == "rl" and self.validates
        if self.lacks(word):
            return False
        return stage in KNOWN_BY.get(key.partition(".")[0], (stage,))

    @property
    def validates(self) -> bool:
        """True where rl is told to validate."""
        return any(word.startswith("rl.validate.every=") for word in self.overrides)

    @property
    def given(self) -> bool:
        """True where ``data`` is an artifact."""
        return bool(self.data) and is_artifact(str(self.data))

    @property
    def printed(self) -> dict[str, dict[str, Benchmark]]:
        """The files of ``conf/benchmark`` with benchmarks that the paper prints its own numbers of."""
        known, paper, found = shipped(), PAPERS.get(self.recipe), dict[str, dict[str, Benchmark]]()
        for path in sorted((compose.folder() / "benchmark").glob("*.yaml")):
            of_file = {name: known[name] for name in yaml.safe_load(path.read_text())}
            rows = [row for one in of_file.values() for row in one.published if row.paper == paper]
            if any(MODELS.get(self.recipe, "") in row.model for row in rows):
                found[path.stem] = of_file
        return found

    def lacks(self, word: str) -> bool:
        """True for an override about a benchmark of the paper whose copy is not in the folder: it is not asked."""
        section, _, name = word.lstrip("+~").partition("=")[0].partition(".")
        if section != "benchmark" or not name or self.benchmarks is None:
            return False
        there = self.copies()[0]
        return any(name.partition(".")[0] in of for choice, of in self.printed.items() if choice not in there)

    def copies(self) -> tuple[list[str], list[str]]:
        """Choices of ``benchmark=`` whose files are all in the folder, and a line for what the others lack.

        Raises:
            ConfigError: no paper prints numbers of this recipe.
            InputError: none of them is there.
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
            raise InputError("\n  ".join(["BENCHMARKS: none of these is there.", *lines]))
        return there, lines


SAID = ("name", "recipe", "scale", "seed")
"""Keys that a pipeline says to each of its commands."""

INPUTS = (
    *(
        "rl.data",
        "rl.model",
        "sft.data",
        "sft.model",
        "filter.data",
        "filter.model",
        "filter.shard",
        "synth.shard",
        "synth.merge",
    ),
    *("synth.preview", "eval.data", "eval.model", "eval.baseline", "eval.label", "eval.shard", "eval.policy"),
)
"""Keys that say which artifacts a command reads, and what it is in the pipeline."""


def refuse(overrides: Sequence[str], keys: Sequence[str], who: str, instead: str = "") -> None:
    """Raises ``ConfigError`` for an override of a key that a pipeline says itself: the last one would be true."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key in keys:
            raise ConfigError(f"{override}: {who} says this to each command itself; give it no further one{instead}")


@functools.cache
def shipped() -> dict[str, Benchmark]:
    """Every benchmark of ``conf/benchmark``."""
    names = ",".join(compose.options("benchmark"))
    job = compose.load("eval", [f"benchmark=[{names}]", "eval.model=none"])
    return convert(job.values["benchmark"], dict[str, Benchmark], "benchmark")


def steps(asked: Reproduction) -> list[Step]:
    """All commands in an order in which each comes after those that it reads."""
    judge = ("judge=openai", f"judge.url={asked.judge}", f"judge.model={asked.judge_model}") if asked.judge else ()
    flags = ("--config-dir", str(asked.config_dir)) if asked.config_dir else ()
    found: list[Step] = []

    def add(name: str, stage: str, recipe: str, seed: int, words: tuple[str, ...], inputs: Mapping[str, str]) -> str:
        makes, ours = f"{asked.prefix}-{name}", {step.makes for step in found}
        reads = {key: ref for key, ref in inputs.items() if ref in ours}
        given = tuple(f"{key}={ref}" for key, ref in inputs.items() if ref not in ours)
        general = (f"+recipe={recipe}", f"scale={asked.scale}", f"seed={seed}", f"name={makes}")
        told = tuple(word for word in asked.overrides if asked.tells(name, stage, recipe, word))
        words = (*general, *words, *given, *(judge if stage in ASKED else ()), *told, *flags)
        found.append(Step(stage, words, reads, makes))
        return makes

    first = asked.seeds[0]
    named = (f"data={asked.data}",) if asked.data else ()
    data = str(asked.data) if asked.given else add("data", "synth", asked.recipe, first, named, {})
    start, taught, demos = _start(asked, flags), None, asked.demos
    if start is None or demos:
        taught = asked.recipe if demos else _teacher(asked, flags)
        demos = demos or add("demos", "synth", taught, first, (), {})

    clean, before = "", ""
    for seed in asked.seeds:
        model = start or ""
        if taught and demos:
            reads = {"sft.data": demos} | ({"sft.model": start} if start else {})
            model = add(f"base-s{seed}", "sft", taught, seed, (), reads)
        if not clean:  # by the pass rates of what is trained, where a rule asks for them
            clean = add(
                "clean", "filter", asked.recipe, first, (), {"filter.data": data, "filter.model": start or model}
            )
        questions, held = _questions(asked, data)
        if taught or not before:
            reads = {**held, "eval.model": model}
            before = add(f"before-s{seed}", "eval", asked.recipe, seed, (*questions, "eval.label=before"), reads)
        copies = (f"rl.validate.benchmarks_in={asked.benchmarks}",) if asked.benchmarks and asked.validates else ()
        policy = add(f"policy-s{seed}", "rl", asked.recipe, seed, copies, {"rl.data": clean, "rl.model": model})
        reads = {**held, "eval.model": policy, "eval.baseline": before}
        add(f"report-s{seed}", "eval", asked.recipe, seed, (*questions, "eval.label=after"), reads)
    taken = {word for step in found for word in step.arguments}
    if unknown := [word for word in asked.overrides if word not in taken and not asked.lacks(word)]:
        stages = ", ".join(sorted({step.verb for step in found}))
        raise ConfigError(f"{' '.join(unknown)}: none of the commands takes it; they are of the stages {stages}")
    if asked.variant and asked.given and only_makes_data(next(s for s in found if s.verb == "rl").argv({})):
        raise ConfigError(
            f"variant={asked.variant[0]} changes how data is made and nothing else, and DATA={asked.data} is made. "
            "Leave DATA= out, or give data that was made with it and no variant"
        )
    return found


def _start(asked: Reproduction, flags: tuple[str, ...]) -> str | None:
    """The model that training starts from; None where sft builds one."""
    if asked.model or asked.scale == TINY:
        return asked.model
    return str(at(_trained(asked, asked.scale, flags).values, "model.path"))


def _trained(asked: Reproduction, scale: str, flags: tuple[str, ...], *more: str) -> compose.Job:
    """The configuration of rl at a scale."""
    own = [word for word in asked.overrides if asked.tells("policy", "rl", asked.recipe, word)]
    return compose.load("rl", [f"+recipe={asked.recipe}", f"scale={scale}", "rl.data=none:v1", *more, *own, *flags])


def _teacher(asked: Reproduction, flags: tuple[str, ...]) -> str:
    """The recipe that teaches a tiny model the environment of the paper's.

    Raises:
        ConfigError: none does.
    """
    maker = taught_by(asked.recipe, asked.config_dir)
    values = compose.load("sft", [f"+recipe={maker}", f"scale={TINY}", "sft.data=none:v1", *flags]).values
    trained = _trained(asked, TINY, flags, "rl.model=none:v1")
    require_taught(maker, values, trained.values, "MODEL")
    return maker


def _questions(asked: Reproduction, data: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Words and inputs of an evaluation: the paper's benchmarks, or held-out rows."""
    if asked.benchmarks is None:
        return (), {"eval.data": data}
    return (f"benchmark=[{','.join(asked.copies()[0])}]", f"eval.benchmarks_in={asked.benchmarks}"), {}
