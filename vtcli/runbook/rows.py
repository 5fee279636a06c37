"""Imported rows: do they say what the reward needs, and are there some to test? rl would ask hours later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from vtcli.envs.parts import Data, Task
from vtcli.errors import InputError
from vtcli.schema import Json
from vtcli.signals import code


def lack(data: Data, rl: Mapping[str, Any], *, held_out: bool) -> str | None:
    """A sentence about the first thing that lacks, by the first good training row of a task; None where all is there.
    ``rl``: the values of its command. ``held_out``: evaluations ask the test rows."""
    tasks = {name: task for name, task in data.tasks.items() if "answer" in task.forms}
    if held_out and all(task.test == 0 for task in tasks.values()):
        return "no task has test rows, and evaluations ask them without BENCHMARKS=: give test, or reading.take"
    for name, task in tasks.items():
        if (truth := first_truth(task)) is None:
            continue
        for phase in rl["rl"]["phases"]:
            if phase["form"] == "answer" and (column := _unsaid(truth, phase["reward"], rl["signals"])):
                return (
                    f"rl needs to know of each row {column} (docs/data.md, columns), and those of {name} do not say it"
                )
    return None


def judge_lack(data: Data, rl: Mapping[str, Any]) -> str | None:
    """A sentence about rows whose evidence the oracle cannot know, where the reward needs it; None where none is."""
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
    """The truth of the first row that can be used; None where no row among the first ten can."""
    return next(iter(first_truths(task)), None)


def first_truths(task: Task) -> Iterator[Mapping[str, Json]]:
    """The truths of those of the first ten training rows that can be used."""
    for item in range(10 if task.train is None else min(10, task.train)):
        with suppress(InputError):
            yield task.generate(seed=0, item=item, split="train", form="answer").truth


def _unsaid(truth: Mapping[str, Json], reward: Mapping[str, Any], signals: Mapping[str, Any]) -> str | None:
    """The fact that a reward needs and a row's truth does not say, with the columns that say it."""
    name = str(reward["_target_"]).rpartition(".")[2]
    if name == "strategic" and code.required(truth) is None:
        return "which operations it needs: required ([] for none), or boxes"
    searches = (signals.get("code") or {}).get("searches") or ()
    assumed = (reward.get("steps") or {}).get("assume_search")
    if name == "tapo" and assumed is None and code.search(truth, searches) is None:
        return "whether it is a visual search: search, boxes, or a source with signals.code.searches"
    return None
