"""Two judges: one reads texts and judges answers, the other sees images and judges evidence (judge=separate)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from vtcli.judging import rubrics
from vtcli.protocols import About, Case, Images, Judge, Ruling
from vtcli.schema import Sample


class Open(Protocol):
    """A judge's bound node of conf/judge."""

    def __call__(self, *, images: Images, home: Path) -> Judge: ...


@dataclass(frozen=True, slots=True)
class JudgePair:
    """A ``Judge`` that sends answers and their consistency (``rubrics.OF_TEXT``) to ``answer``, everything else to
    ``evidence``."""

    answer: Judge
    evidence: Judge

    @property
    def name(self) -> str:
        return f"{self.answer.name} (answers), {self.evidence.name} (evidence)"

    @property
    def trouble(self) -> str:
        return " ".join(filter(None, (self.answer.trouble, self.evidence.trouble)))

    def knows(self, about: About, sample: Sample) -> bool:
        return self.of(about).knows(about, sample)

    async def start(self, rubrics_asked: Sequence[str], *, eager: bool = True) -> None:
        """Tries each judge with its own rubrics; opens a judge without any as well."""
        for judge in (self.answer, self.evidence):
            own = [name for name in rubrics_asked if self.of(rubrics.load(name).about) is judge]
            await judge.start(own, eager=eager)

    async def __call__(self, case: Case) -> Ruling:
        return await self.of(case.about)(case)

    async def close(self) -> None:
        try:  # both are closed, even if the first one fails
            await self.answer.close()
        finally:
            await self.evidence.close()

    def of(self, about: About) -> Judge:
        """Returns the judge for this subject."""
        return self.answer if about in rubrics.OF_TEXT else self.evidence


def open_judge(*, answer: Open, evidence: Open, images: Images, home: Path) -> JudgePair:
    """Opens both judges of conf/judge/separate.yaml. Each has its own endpoint, model and file of verdicts."""
    return JudgePair(answer(images=images, home=home), evidence(images=images, home=home))


def name_of(judge: Judge, about: About) -> str:
    """Returns the name of the judge for this subject, of one of a pair if there is a pair."""
    return judge.of(about).name if isinstance(judge, JudgePair) else judge.name


def answers_by(config: Mapping[str, Any]) -> str | None:
    """Returns the model that judges answers in a composed or recorded configuration, or None without a model."""
    judge = cast("Mapping[str, Any]", config.get("judge") or {})
    return (judge.get("answer") or judge).get("model")
