"""Checks of steps before the first one runs: their keys and values, and the measures that their reports will have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vtcli.config import compose
from vtcli.errors import ConfigError, VtcliError
from vtcli.runbook.book import Expansion, Runbook
from vtcli.runbook.rows import first_truth, judge_lack
from vtcli.runbook.step import Step
from vtcli.runbook.verbs import STAGES, stage_parts
from vtcli.runs.run import RunSettings

OWN = ("name=", "seed=", "eval.label=")
"""Words by which commands differ that are checked once."""


def require_right(steps: Sequence[Step]) -> None:
    """Composes commands and checks their values, until each word of each stage was in one.

    Raises:
        ConfigError: a key or a value is wrong; with the command.
    """
    seen = set[tuple[str, str]]()
    for step in (each for each in steps if each.verb in STAGES):
        seed = next((word for word in step.arguments if word.startswith("seed=")), "seed=0")
        words = {
            (step.verb, word) for word in (*step.arguments, *step.reads) if word not in (f"name={step.makes}", seed)
        }
        try:
            RunSettings.of({"name": step.makes, "seed": seed.removeprefix("seed=")}, step.verb)
            if words <= seen:
                continue
            seen |= words
            config: Any = compose.build(stage_parts(step.verb)[0], compose.load(step.verb, step.argv({})))
            if step.verb == "eval":
                config.require_questions()
        except VtcliError as error:
            raise ConfigError(f"{step.line({})}\n  {error}") from error


def require_judges(steps: Sequence[Step]) -> None:
    """Raises ``ConfigError`` for an rl whose reward needs a judge of its rows and names none: it would fail after its
    data were made and filtered."""
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
    """Steps that differ in more than their name, seed and label."""
    return list({tuple(w for w in each.arguments if not w.startswith(OWN)): each for each in steps}.values())


def _job(step: Step) -> compose.Job:
    return compose.load(step.verb, step.argv({}))
