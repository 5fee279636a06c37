"""The cost of what comes beside rl: the rollouts of filter and evaluations, and the rows of sft."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vtcli.cli.reproduction.graph import Reproduction
from vtcli.config import compose
from vtcli.filters.applying import ROLLED, needs
from vtcli.plan.estimate import Plan
from vtcli.runbook.missing import rows_by_task
from vtcli.runbook.step import Step
from vtcli.runbook.verbs import stage_parts


def beside_rl(asked: Reproduction, steps: Sequence[Step], plan: Plan | None) -> Iterator[str]:
    """A line for each of filter, sft and eval. With a plan of rl it has GPU-hours: a rollout, and a row of sft, is
    taken to cost what it costs there. Rows of imported data and of demonstrations are not known before."""
    jobs = {step.verb: compose.load(step.verb, step.argv({})) for step in reversed(steps)}
    values = {stage: job.values for stage, job in jobs.items()}
    count = {stage: sum(step.verb == stage for step in steps) for stage in values}
    rows = None if asked.given else values["synth"]["data"]["tasks"]
    if (k := tries(jobs["filter"])) and (train := _rows(rows, "train", values["filter"]["filter"]["forms"])):
        yield f"filter: {train * k:,} rollouts, {k} of each row{_hours(plan, train * k, rollout_s)}"
    elif k:
        yield f"filter: {k} rollouts of each row"
    if "sft" in values:
        epochs, known = values["sft"]["sft"]["epochs"], values["sft"]["sft"]["rows"]
        told = f"{known:,} rows" if known else "the rows of its demonstrations"
        cost = _hours(plan, epochs * known, row_s) if known else ""
        yield f"sft: {count['sft']} × {epochs:g} epochs over {told}{cost}"
    section = values["eval"]["eval"]
    each = int(section["samples_per_question"])
    runs = f"eval: {count['eval']} × "
    if asked.benchmarks:
        test = _of_benchmarks(values["eval"], each)
    elif test := _rows(rows, "test", section["forms"]):
        test = min(test, section["max_samples"] or test) * each
    if test:
        yield f"{runs}{test:,} rollouts{_hours(plan, count['eval'] * test, rollout_s)}"
    else:
        yield f"{runs}{each} rollouts of each question, more where a benchmark says so"
    if probe := values["eval"].get("probe"):
        more = probe["trajectories"] * (1 + len(probe["conditions"])) * probe["continuations"]
        hours = _hours(plan, count["eval"] * more, rollout_s)
        yield f"probe: {count['eval']} × {more:,} rollouts from the cut on{hours}"


def _of_benchmarks(values: Mapping[str, Any], each: int) -> int | None:
    """Rollouts of an evaluation on benchmarks; None where the rows of one are not known."""
    total, drawn = 0, values["eval"]["generation"] or {}
    for name, one in values["benchmark"].items():
        own = {**(one.get("generation") or {}), **(drawn.get(name) or {})}
        if one["rows"] is None:
            return None
        asked = min(one["rows"], values["eval"]["max_samples"] or one["rows"])
        total += asked * int(own.get("samples_per_question") or each)
    return total


def tries(job: compose.Job) -> int:
    """Rollouts of each row, at most, that the rules of ``vtcli filter`` ask for, with tools and without; 0 where none
    asks."""
    config: Any = compose.build(stage_parts("filter")[0], job)
    return int(config.rollouts.k) * sum(bool(needs(config.rules, fact)) for fact in ROLLED)


def rollout_s(plan: Plan) -> float:
    """Seconds of all GPUs together for one trajectory."""
    return (plan.time.images + plan.time.generation + plan.time.tools) / (plan.work.prompts * plan.work.group_size)


def row_s(plan: Plan) -> float:
    """Seconds of all GPUs together for learning from one trajectory."""
    return plan.time.learner / (plan.work.learnt * plan.work.group_size)


def _rows(tasks: Mapping[str, Any] | None, split: str, forms: Sequence[str]) -> int | None:
    """Rows of a split of generated data; None where a task does not say."""
    counts = rows_by_task(tasks or {}, split, forms)
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def _hours(plan: Plan | None, times: float, seconds: Callable[[Plan], float]) -> str:
    if plan is None:
        return ""
    return f", {times * seconds(plan) * plan.cluster.gpus / 3600:,.1f} GPU-hours"
