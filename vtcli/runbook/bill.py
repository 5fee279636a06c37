"""The size and cost of each step before it runs: rows, rollouts, GPU-hours and disk.

Imported data have the rows of their files; a benchmark without a number in its configuration has those of its local
copy. A figure that cannot be computed is ``unknown`` in its line and in the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vtcli.benchmarks import files
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.envs.counts import counted
from vtcli.errors import ConfigError, InputError
from vtcli.filters.applying import ROLLED, needs
from vtcli.plan.estimate import Plan
from vtcli.runbook import cost
from vtcli.runbook.step import STAGES, Step, stage_parts
from vtcli.store.artifacts import ArtifactStore

UNKNOWN = math.nan
ARTIFACTS_OF_WEIGHTS = 3
"""The policy, its newest checkpoint, and the checkpoint that is being written."""
BYTES_A_PARAMETER = 14
GIB = 2**30


@dataclass(frozen=True)
class Figures:
    """The size of a step. None: the step has no such figure. NaN: its figure is not known."""

    rows: float | None = None
    rollouts: float | None = None
    gpu_hours: float | None = None
    disk_gib: float | None = None

    def __str__(self) -> str:
        names = {"rows": "rows", "rollouts": "rollouts", "gpu_hours": "GPU-hours", "disk_gib": "GiB on disk"}
        shown = {name: getattr(self, name) for name in names}
        return ", ".join(f"{_number(value)} {names[name]}" for name, value in shown.items() if value is not None)


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:,.1f}" if value != round(value) else f"{value:,.0f}"


@dataclass(frozen=True)
class Bill:
    """The figures of each step, and their sum. A figure that is unknown in one step makes the sum a lower bound."""

    lines: tuple[tuple[Step, Figures], ...]

    @property
    def total(self) -> str:
        found = list[str]()
        for each in fields(Figures):
            lines = [line for step, line in self.lines if each.name != "rows" or step.verb == "synth"]  # not twice
            values = [value for line in lines if (value := getattr(line, each.name)) is not None]
            known = math.fsum(value for value in values if not math.isnan(value))
            if values:
                text = str(Figures(**{each.name: known}))
                lacking = sum(map(math.isnan, values))
                found.append(f"{text} and {lacking} × unknown" if lacking else text)
        return ", ".join(found) or "nothing"


@dataclass
class _Books:
    """Facts that a bill collects: rows of datasets by the artifact's name, figures of equal steps."""

    store: ArtifactStore
    plan: Plan | None
    rows: dict[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])  # by FORM-SPLIT
    known: dict[tuple[str, ...], tuple[Figures, Mapping[str, float]]] = field(
        default_factory=dict[tuple[str, ...], tuple[Figures, Mapping[str, float]]]
    )


def bill(steps: Sequence[Step], home: Path, plan: Plan | None = None) -> Bill:
    """Returns the figures of each step. A plan of rl adds GPU-hours, under the assumption that a rollout, and a row of
    sft, costs as much as in that plan."""
    books, lines = _Books(ArtifactStore(home), plan), list[tuple[Step, Figures]]()
    for step in steps:
        if step.verb not in STAGES:
            lines.append((step, Figures()))
            continue
        # Words that change no figure: a claim over seeds and arms has hundreds of steps, and composing one takes 0.1 s.
        own = ("name=", "seed=", "eval.label=", "eval.baseline=")
        key = (step.verb, *(word for word in step.arguments if not word.startswith(own)), *_data(step, books))
        if key not in books.known:
            books.known[key] = _figures(step, compose.load(step.verb, step.argv({})), books)
        figures, books.rows[step.makes] = books.known[key]
        lines.append((step, figures))
    return Bill(tuple(lines))


def _data(step: Step, books: _Books) -> list[str]:
    """Returns a text that is equal for steps that read equal rows."""
    names = [name for key, name in step.reads.items() if key.endswith(".data")]
    return [f"{sorted(books.rows.get(name, {}).items())}" for name in names]


def _figures(step: Step, job: compose.Job, books: _Books) -> tuple[Figures, Mapping[str, float]]:
    """Returns the figures of a step, and the rows by form and split of the dataset that it makes."""
    values, plan = job.values, books.plan
    if step.verb == "synth":
        rows = _made_rows(job)
        return Figures(rows=math.fsum(rows.values())), rows
    rows = _read_rows(step, books)
    if step.verb == "filter":
        train = _in_forms(rows, "train", values["filter"]["forms"])
        rollouts = tries(job) * train if tries(job) else None
        return Figures(rows=train, rollouts=rollouts, gpu_hours=_hours(plan, rollouts)), rows
    if step.verb == "sft":
        section = values["sft"]
        count = min(math.fsum(rows.values()), section["rows"] or math.inf) if rows else section["rows"] or UNKNOWN
        hours = None
        if plan is not None:  # a row costs as much as learning from a trajectory
            row_s = plan.time.learner / (plan.work.learnt * plan.work.group_size)
            hours = section["epochs"] * count * row_s * plan.cluster.gpus / 3600
        return Figures(rows=count, gpu_hours=hours, disk_gib=_disk(plan)), {}
    if step.verb == "rl":
        rl = values["rl"]
        count = sum(int(phase["steps"]) for phase in rl["phases"])
        rollouts = count * round(rl["prompts_per_step"] * rl["fill"]["oversample"]) * rl["group_size"]
        return Figures(rollouts=rollouts, gpu_hours=plan and plan.gpu_hours, disk_gib=_disk(plan)), {}
    if step.verb == "eval":
        rollouts = _asked(values, rows)
        if probe := values.get("probe"):
            rollouts += probe["trajectories"] * (1 + len(probe["conditions"])) * probe["continuations"]
        return Figures(rollouts=rollouts, gpu_hours=_hours(plan, rollouts)), {}
    return Figures(), {}


def _made_rows(job: compose.Job) -> dict[str, float]:
    """Returns the rows of a dataset or of demonstrations that a step will make."""
    config: Any = compose.build(stage_parts("synth")[0], job)
    if config.demos is not None:
        counts = [count for kinds in config.demos.rows.values() for count in (kinds or {}).values()]
        return {"demos": math.fsum(UNKNOWN if count is None else count for count in counts)}
    if config.teacher is not None:
        return {"demos": UNKNOWN if config.distil.rows is None else float(config.distil.rows)}
    try:
        tasks = counted(config.data)[0].tasks.values()
    except (ConfigError, InputError, OSError):  # the check of the data reports the reason
        return {f"{form}-{split}": UNKNOWN for form in config.forms for split in ("train", "validation", "test")}
    return {
        f"{form}-{split}": float(sum(getattr(task, split) or 0 for task in tasks if form in task.forms))
        for form in config.forms
        for split in ("train", "validation", "test")
    }


def _read_rows(step: Step, books: _Books) -> Mapping[str, float]:
    """Returns the rows of the dataset that a step reads: another step's, or an existing artifact's."""
    for key, name in step.reads.items():
        if key.endswith(".data"):
            return books.rows.get(name, {})
    named = [word.partition("=")[2] for word in step.arguments if word.startswith(f"{step.verb}.data=")]
    for ref in named:
        with suppress(InputError):  # the check of the data reports the reason
            summary = books.store.resolve(ref, verify=False).manifest.summary.get("rows")
            if isinstance(summary, Mapping):
                return {part: math.fsum(counts.values()) for part, counts in summary.items()}
    return {}


def _in_forms(rows: Mapping[str, float], split: str, forms: Sequence[str]) -> float:
    counts = [count for part, count in rows.items() if part in [f"{form}-{split}" for form in forms]]
    return math.fsum(counts) if rows else UNKNOWN


def _asked(values: Mapping[str, Any], rows: Mapping[str, float]) -> float:
    """Returns the rollouts of an evaluation of benchmarks or of held-out rows."""
    section, total = values["eval"], 0.0
    each, most = int(section["group_size"]), section["max_samples"] or math.inf
    if not values.get("benchmark"):
        counts = [_in_forms(rows, section.get("split") or "test", [form]) for form in section["forms"]]
        return math.fsum(count if math.isnan(count) else min(count, most) for count in counts) * each
    drawn = section["generation"] or {}
    known = convert(values["benchmark"], dict[str, Benchmark], "benchmark")
    for name, one in values["benchmark"].items():
        own = {**(one.get("generation") or {}), **(drawn.get(name) or {})}
        count = one["rows"] if one["rows"] is not None else _copied(values, name, known[name])
        count = count if math.isnan(count) else min(count, most)
        total += count * int(own.get("group_size") or each)
    return total


def _copied(values: Mapping[str, Any], name: str, benchmark: Benchmark) -> float:
    """Returns the rows of a benchmark's local copy."""
    folder = values["eval"]["benchmarks_in"]
    with suppress(InputError):
        if folder:
            return float(sum(1 for path in files.locate(Path(folder), name, benchmark)[1] for _ in files.rows(path)))
    return UNKNOWN


def tries(job: compose.Job) -> int:
    """Returns the most rollouts of each row that the rules of ``vtcli filter`` need, with tools and without; 0 if no
    rule needs any."""
    config: Any = compose.build(stage_parts("filter")[0], job)
    return int(config.rollouts.group_size) * sum(bool(needs(config.rules, fact)) for fact in ROLLED)


def _hours(plan: Plan | None, rollouts: float | None) -> float | None:
    if plan is None or rollouts is None:
        return None
    seconds = plan.time.images + plan.time.generation + plan.time.tools  # of all GPUs together, for a step's rollouts
    return rollouts * seconds / plan.work.trajectories * plan.cluster.gpus / 3600


def _disk(plan: Plan | None) -> float | None:
    return plan and BYTES_A_PARAMETER * plan.arch.parameters * ARTIFACTS_OF_WEIGHTS / GIB


OF_JOBS = "1x8xH100"
"""Cluster of a bill if the user names none and this machine has no GPU."""


def planned(steps: Sequence[Step], cluster: str | None, host_gib: float | None = None) -> Plan | None:
    """Returns the plan of the first rl on a cluster, by default on this machine's GPUs, else on eight H100. Returns
    None without rl, and at scale tiny without a cluster."""
    step = next((step for step in steps if step.verb == "rl"), None)
    if step is None or (cluster is None and "scale=tiny" in step.arguments):
        return None
    words = [word for word in step.arguments if not word.startswith(("rl.model=", "rl.data=", "name=", "launch."))]
    given = [word.partition("=") for each in steps for word in each.arguments]
    models = [value for wanted in ("rl.model", "sft.model") for key, _, value in given if key == wanted]
    words += [f"plan.model={models[0]}"] if models else []
    words += [f"plan.host_gib={host_gib:.1f}"] if host_gib else []
    return cost.run([*words, f"cluster={cluster or cost.this_machine() or OF_JOBS}"])


def lines(found: Bill) -> Iterator[str]:
    """Yields a line for each step, its command with its figures, and then their sum."""
    for step, figures in found.lines:
        yield step.line({}) + (f"    # {figures}" if str(figures) else "")
    yield f"in all: {found.total}"
