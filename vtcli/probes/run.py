"""One run of the causal probe: its plan, and its continuations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from vtcli.probes import effects
from vtcli.probes.causal import ORIGINAL, Continuation, Key, ProbePlanner, choose, eligible, row
from vtcli.rollout.loop import RolloutRequest
from vtcli.schema import Scored, Stop
from vtcli.store.image_work import in_thread


class ProbeRun:
    """Continuations of some of the trajectories ``found``, which ``keep`` takes as they are finished."""

    def __init__(self, planner: ProbePlanner, found: Sequence[Scored]) -> None:
        self.planner, self._found = planner, found
        self._eligible = eligible(found, planner.probe)
        self.sources = choose(self._eligible, planner.probe.trajectories, planner.seed)
        self._scored = {source.scored.trajectory.id: source.scored for source in self.sources}
        self._rows: dict[Key, Continuation] = {}
        self._keys: dict[str, Key] = {}  # by the continuation's id

    async def requests(self) -> list[RolloutRequest]:
        """All continuations. Makes their pictures."""
        found: list[RolloutRequest] = []
        for source in self.sources:
            made = await in_thread(partial(list, self.planner.requests(source)))
            self._keys |= {request.id: key for key, request in made}
            found += [request for _, request in made]
        return found

    def keep(self, scored: Scored) -> None:
        """Takes one finished continuation."""
        key = self._keys[scored.trajectory.id]
        self._rows[key] = row(key, self._scored[key[0]], scored.trajectory, scored.signals)

    @property
    def done(self) -> set[str]:
        """Ids of the requests that are finished."""
        return {id_ for id_, key in self._keys.items() if key in self._rows}

    @property
    def conditions(self) -> tuple[str, ...]:
        """The control and the replacements, in their order."""
        return (ORIGINAL, *self.planner.probe.conditions)

    @property
    def rows(self) -> list[Continuation]:
        """Every continuation, in the order of the plan."""
        places = {name: i for i, name in enumerate((*self._scored, *self.conditions))}
        return sorted(self._rows.values(), key=lambda one: (places[one.source], places[one.condition], one.number))

    @property
    def unjudged(self) -> float | None:
        """Share of the whole continuations without a judge's verdict; None without any."""
        whole = [one for one in self.rows if one.trajectory.stop is not Stop.BROKEN]
        return sum(one.right is None for one in whole) / len(whole) if whole else None

    def result(self) -> effects.CausalResult:
        """The figures."""
        plain = [s for s in self._found if s.trajectory.stop is not Stop.BROKEN]
        answered = sum(s.signals.values.get("answer_correct") is not None for s in plain)
        return effects.result(self.rows, answered, len(self._eligible), self.planner.seed)
