"""Checks of steps before the first one runs: keys and values, measures of the reports, and whether imported rows have
the facts that the reward needs, because rl would refuse them hours later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from vtcli.config import compose
from vtcli.envs.parts import Data, Task
from vtcli.errors import ConfigError, InputError, VtcliError
from vtcli.runbook.book import Expansion, Runbook
from vtcli.runbook.step import STAGES, Step, stage_parts
from vtcli.runs.run import RunSettings
from vtcli.schema import Json
from vtcli.signals import code

OWN = ("name=", "seed=", "eval.label=")
"""Words in which commands may differ and are still checked only once."""


def require_right(steps: Sequence[Step]) -> None:
    """Composes commands and checks their values, until each word of each stage has been in one.

    Raises:
        ConfigError: a key or a value is wrong; the message has the command.
    """
    seen = set[tuple[str, str]]()
    for step in (each for each in steps if each.verb in STAGES):
        seed = next((word for word in step.arguments if word.startswith("seed=")), "seed=0")
        words = {
            (step.verb, word) for word in (*step.arguments, *step.reads) if word not in (f"name={step.makes}", seed)
        }
        try:
            RunSettings.of({"name": step.makes, "seed": seed.removeprefix("seed=")}, step.verb)
            # Words and not commands: a runbook over seeds and arms repeats the same words in hundreds of commands.
            if words <= seen:
                continue
            seen |= words
            config: Any = compose.build(stage_parts(step.verb)[0], compose.load(step.verb, step.argv({})))
            if step.verb == "eval":
                config.require_questions()
        except VtcliError as error:
            raise ConfigError(f"{step.line({})}\n  {error}") from error


def require_judges(steps: Sequence[Step]) -> None:
    """Raises ``ConfigError`` for an rl that names no judge although its reward needs one for its rows, because it would
    fail only after its data were made and filtered."""
    made = {step.makes: step for step in steps}
    for step in distinct(each for each in steps if each.verb == "rl"):
        source = made.get(step.reads.get("rl.data", ""))
        while source is not None and source.verb == "filter":
            source = made.get(source.reads.get("filter.data", ""))
        if source is None or source.verb != "synth":
            continue
        config: Any = compose.build(stage_parts("synth")[0], _job(source))
        if config.teacher is None and (lacking := judge_lack(config.data, _job(step).values)):
            raise ConfigError(f"{step.line({})}\n  {lacking}")


def require_measured(book: Runbook, found: Expansion) -> None:
    """Raises ``ConfigError`` for a measure or a property ``by`` that no question of the reports will have."""
    if not book.measures:
        return
    reports = distinct(step for step in found.steps if step.makes in found.places)
    names = {step.reads["eval.data"] for step in reports if "eval.data" in step.reads}
    data = [_job(step) for step in distinct(step for step in found.steps if step.makes in names)]
    evals = [_job(step).values for step in reports]
    forms = {form for values in evals for form in values["eval"]["forms"]}
    probed = {name for values in evals for name in (values.get("probe") or {}).get("conditions", ())}
    tasks = {(name, form) for job in data for name, task in job.values["data"]["tasks"].items()
             for form in forms & set(job.values["synth"]["forms"]) & set(task.get("forms") or forms)}  # fmt: skip
    for measure in book.measures:
        form, task, name = measure.split(".")
        if form == "causal" and name not in probed:
            raise ConfigError(
                f"measures: {measure}: evaluations probe {', '.join(sorted(probed)) or 'nothing'}; words.eval takes "
                f"probe=causal with {name} in probe.conditions"
            )
        form = "answer" if form == "causal" else form
        if form not in forms:
            raise ConfigError(f"measures: {measure}: evaluations ask the forms {', '.join(sorted(forms))} (eval.forms)")
        known = sorted(name for name, asked_in in tasks if asked_in == form)
        if data and task not in ("all", *known):
            raise ConfigError(f"measures: {measure}: {task} is not asked; expected all or one of {', '.join(known)}")
    key = {"difficulty": "difficulty", "orientation": "transform"}.get(book.by or "")
    configs: list[Any] = [compose.build(stage_parts("synth")[0], job) for job in data] if key else []
    tasks_of = [task for config in configs for task in config.data.tasks.values()]
    if key and data and not any(key in (first_truth(task) or {}) for task in tasks_of):
        raise ConfigError(f"by: no question of +recipe={book.recipe} has a {book.by}: leave by out, or ask others")


def distinct(steps: Iterable[Step]) -> list[Step]:
    """Returns steps that differ in more than their name, seed and label."""
    return list({tuple(w for w in each.arguments if not w.startswith(OWN)): each for each in steps}.values())


def _job(step: Step) -> compose.Job:
    return compose.load(step.verb, step.argv({}))


def lack(data: Data, rl: Mapping[str, Any], *, held_out: bool) -> str | None:
    """Returns a sentence about the first missing fact, by the first good training row of each task, or None. ``rl`` has
    the values of its command. ``held_out``: evaluations ask the test rows."""
    tasks = {name: task for name, task in data.tasks.items() if "answer" in task.forms}
    if held_out and all(task.test == 0 for task in tasks.values()):
        return "no task has test rows, and evaluations ask them without BENCHMARKS=: give test, or reading.take"
    for name, task in tasks.items():
        if (truth := first_truth(task)) is None:
            continue
        for phase in rl["rl"]["phases"]:
            if phase["form"] == "answer" and (column := _unsaid(truth, phase["reward"], rl["signals"])):
                return f"rl needs to know of each row {column} (docs/data.md, columns), which those of {name} lack"
    return None


def judge_lack(data: Data, rl: Mapping[str, Any]) -> str | None:
    """Returns a sentence about rows for which the oracle cannot judge the evidence that the reward needs, or None."""
    judge: Any = rl.get("judge")
    node = judge.get("_target_") if isinstance(judge, Mapping) else judge
    rewards = [str(phase["reward"]["_target_"]).rpartition(".")[2] for phase in rl["rl"]["phases"]]
    if "tapo" not in rewards or (node is not None and "oracle" not in str(node)):
        return None
    searches = (rl["signals"].get("code") or {}).get("searches") or ()
    for name, task in data.tasks.items():
        truths = first_truths(task) if "answer" in task.forms else ()
        if any(not truth.get("boxes") and code.search(truth, searches) for truth in truths):
            return (
                f"the reward asks whether a crop shows what the question is about, and rows of {name} have no boxes by "
                "which the oracle could decide it. Name a judge: judge=openai judge.url=URL judge.model=NAME"
            )
    return None


def first_truth(task: Task) -> Mapping[str, Json] | None:
    """Returns the truth of the first usable row, or None if none of the first ten is usable."""
    return next(iter(first_truths(task)), None)


def first_truths(task: Task) -> Iterator[Mapping[str, Json]]:
    """Yields the truths of the usable rows among the first ten for training."""
    for item in range(10 if task.train is None else min(10, task.train)):
        with suppress(InputError):
            yield task.generate(seed=0, item=item, split="train", form="answer").truth


def _unsaid(truth: Mapping[str, Json], reward: Mapping[str, Any], signals: Mapping[str, Any]) -> str | None:
    """Returns the fact that a reward needs and a row's truth lacks, with the columns that supply it, or None."""
    name = str(reward["_target_"]).rpartition(".")[2]
    if name == "strategic" and code.required(truth) is None:
        return "which operations it needs: required ([] for none), or boxes"
    searches = (signals.get("code") or {}).get("searches") or ()
    assumed = (reward.get("steps") or {}).get("assume_search")
    if name == "tapo" and assumed is None and code.search(truth, searches) is None:
        return "whether it is a visual search: search, boxes, or a source with signals.code.searches"
    return None
