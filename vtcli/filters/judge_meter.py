"""Asks judges about questions, for the rules of ``judged``. Each judge keeps its verdicts in its own file."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from vtcli.errors import ConfigError, EngineError
from vtcli.filters.applying import MEASURED, Decided, needs
from vtcli.filters.facts import RowFacts, Rule
from vtcli.filters.judged import Judged, Scores
from vtcli.foreign import print_line
from vtcli.progress import RowBars
from vtcli.protocols import Case, Judge
from vtcli.rollout import workers
from vtcli.rollout.threads import EventLoop
from vtcli.schema import Sample, Stop, Trajectory

FORM = "answer"
"""Only plain questions have an answer to judge."""

FACT = "judgements"


def rubrics_of(rules: Mapping[str, Rule]) -> list[str]:
    """Returns the rubrics that rules ask, from their setting ``rubric`` or its default."""
    # A rule arrives as a partial of its configuration, whose signature shows a set value as the default.
    found: set[str] = set()
    for rule in rules.values():
        parameters = inspect.signature(cast(Any, rule)).parameters
        if FACT in parameters and "rubric" in parameters:
            found.add(str(parameters["rubric"].default))
    return sorted(found)


def contested_of(rules: Mapping[str, Rule]) -> set[str]:
    """Returns the rubrics of rules that read pass rates, too: judges are asked where label and policy disagree."""
    return set(rubrics_of({name: rules[name] for name in needs(rules, MEASURED)}))


class JudgeMeter(Mapping[str, Mapping[tuple[str, str], Scores]]):
    """``Judged`` of the rows of the last call. A rubric's questions are asked when a rule first reads them.

    A judge that is down or fails its trial gives no verdict, and the run continues with the others. ``found`` has all
    scores, also of dropped rows. For a rubric in ``contested`` a judge sees two answers, the label and the policy's
    (``rival``), and does not know which is which, because models tend to agree with a single one. The score is the
    label's.
    """

    def __init__(
        self,
        judges: Sequence[Callable[[], Judge]],
        rubrics: Sequence[str],
        load: Callable[[RowFacts], Sample],
        concurrency: int,
        contested: Collection[str] = (),
        rival: Callable[[RowFacts], str | None] = lambda row: None,
    ) -> None:
        self._open, self._rubrics, self._load, self._concurrency = judges, rubrics, load, concurrency
        self._contested, self._rival = contested, rival
        self._shown: dict[tuple[str, str], str] = {}  # the policy's answers that judges were shown
        self._judges: list[Judge] = []
        self._loop: EventLoop | None = None
        self._rows: Sequence[RowFacts] = ()
        self._said: dict[str, Mapping[tuple[str, str], Scores]] = {}  # of these rows, by rubric: rules read it per row
        self.found: dict[str, dict[tuple[str, str], Scores]] = {rubric: {} for rubric in rubrics}
        self.down: dict[str, str] = {}  # the error of each judge that failed

    @property
    def names(self) -> list[str]:
        """The judges' names; empty before the first question."""
        return [judge.name for judge in self._judges]

    def __call__(self, rows: Sequence[RowFacts], decided: Decided) -> Judged:
        del decided
        self._rows = [row for row in rows if row.form == FORM]
        self._said.clear()
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(self._rubrics)

    def __len__(self) -> int:
        return len(self._rubrics)

    def __getitem__(self, rubric: str) -> Mapping[tuple[str, str], Scores]:
        """Raises ``EngineError`` when no judge is left, ``ConfigError`` for the same model twice."""
        if rubric in self._said:
            return self._said[rubric]
        known, rows = self.found[rubric], self._rows
        if rubric in self._contested:
            rivals = {row.key: rival for row in rows if (rival := self._rival(row)) is not None}
            rows = [row for row in rows if row.key in rivals]
            self._shown |= rivals
        todo = [row for row in rows if row.key not in known]
        if todo:
            if self._loop is None:
                self._loop = EventLoop()
                self._loop.__enter__()
            known.update(self._loop.run(self._all(rubric, todo)))
        self._said[rubric] = {row.key: known[row.key] for row in rows}
        return self._said[rubric]

    def close(self) -> None:
        if self._loop is None:
            return
        try:
            for judge in self._judges:
                self._loop.run(judge.close())
        finally:
            self._loop.__exit__(None, None, None)

    def account(self) -> dict[str, Any]:
        """Returns the entry of ``filter.json``: judges, missing verdicts and agreement for each rubric."""
        rubrics = [self._counts(rubric, scores) for rubric, scores in self.found.items() if scores]
        return {"judged": rubrics} if rubrics else {}

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yields the scores of every question, also of dropped ones."""
        for rubric, found in self.found.items():
            for key, scores in found.items():
                rival = {"rival": self._shown[key]} if rubric in self._contested else {}
                yield {"id": key[1], "file": key[0], "rubric": rubric, "scores": list(scores)} | rival

    def _counts(self, rubric: str, found: Mapping[tuple[str, str], Scores]) -> dict[str, Any]:
        both = [scores for scores in found.values() if None not in scores]
        return {
            "rubric": rubric,
            "judges": self.names,
            "questions": len(found),
            "without_verdict": [sum(s[n] is None for s in found.values()) for n in range(len(self._judges))],
            "agree": sum(len(set(scores)) == 1 for scores in both) / len(both) if both else None,
        }

    async def _all(self, rubric: str, rows: Sequence[RowFacts]) -> dict[tuple[str, str], Scores]:
        if not self._judges:
            self._judges = [open_one() for open_one in self._open]
            if len(set(self.names)) < len(self._judges):
                raise ConfigError(f"both judges are {self.names[0]}: expected another filter.second_judge.model")
            for judge in self._judges:
                await judge.start(self._rubrics, eager=False)
        found, title = dict[tuple[str, str], Scores](), f"judges: {rubric}"
        with RowBars() as bars:
            bars.begin(title, len(rows))

            async def asked(row: RowFacts) -> None:
                sample = await asyncio.to_thread(self._load, row)
                found[row.key] = tuple(await asyncio.gather(*(self._ask(j, rubric, row, sample) for j in self._judges)))
                bars.advance(title)

            await workers.each(rows, asked, self._concurrency)
        if len(self.down) == len(self._judges):
            raise EngineError(f"no judge is left. {next(iter(self.down.values()))}")
        return found

    async def _ask(self, judge: Judge, rubric: str, row: RowFacts, sample: Sample) -> float | None:
        if judge.name in self.down or not judge.knows("quality", sample):
            return None
        played = Trajectory(sample.id, sample, (), sample.images, (), Stop.ANSWERED, 0)
        texts, contested = {"question": sample.question, "truth": sample.answer}, rubric in self._contested
        # Judges prefer one place, so half of the rows show the label second; by content, so that a rerun agrees.
        swapped = contested and hashlib.sha256(row.content.encode()).digest()[0] % 2 == 1
        if contested:
            pair = (sample.answer, self._shown[row.key])
            texts = {"question": sample.question, "first": pair[swapped], "second": pair[not swapped]}
        try:
            score = (await judge(Case("quality", rubric, texts, sample.images, played))).score
            return 1.0 - score if swapped and score is not None else score
        except EngineError as error:
            if judge.name not in self.down:
                self.down[judge.name] = str(error)
                print_line(f"the judge {judge.name} gives no verdicts from now on: {error}")
            return None
