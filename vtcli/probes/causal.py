"""The causal probe: which trajectories are continued, from where, under which conditions, and the records of it.

A trajectory is cut after an observation that showed a picture. The same policy continues it from the same tokens, once
with the picture as it was (``original``, the control) and once with each replacement. Equal numbers of continuations
share a seed across conditions, so that they differ by the picture alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from vtcli.config.bounds import OutOfBounds, at_least
from vtcli.errors import ConfigError
from vtcli.probes.pictures import CONDITIONS, ToolPicture
from vtcli.protocols import Images, Sampling
from vtcli.rollout.loop import Prefix, RolloutRequest, derive_seed
from vtcli.schema import EnvTurn, ImageRef, PolicyTurn, Sample, Scored, Signals, Stop, Trajectory

ORIGINAL = "original"

Key = tuple[str, str, int]
"""Source trajectory, condition, number of the continuation."""


@dataclass(frozen=True)
class CausalProbe:
    """Settings of the probe, from conf/probe/causal.yaml."""

    trajectories: int
    continuations: int
    cut: Literal["first", "last"]
    conditions: tuple[str, ...]

    def __post_init__(self) -> None:
        at_least(1, self, "trajectories", "continuations")
        known, given = tuple(CONDITIONS), self.conditions
        if not given or set(given) - set(known) or len(set(given)) < len(given):
            raise OutOfBounds("conditions", f"expected some of {', '.join(known)}, each once; got {list(given)}.")

    def require(self, policy: str, tools: str, forms: Sequence[str]) -> None:
        """Raises ``ConfigError`` for an evaluation without answers of a model that calls tools."""
        if policy != "model" or tools == "none" or "answer" not in forms:
            raise ConfigError(
                "probe=causal continues a model's answers after a tool's picture: it needs eval.policy=model, "
                f"eval.tools=offered and the form answer; got {policy}, {tools}, {list(forms)}"
            )


@dataclass(frozen=True, slots=True)
class ProbeSource:
    """A stored trajectory and the number of its turns up to the cut."""

    scored: Scored
    turns: int


@dataclass(frozen=True, slots=True)
class Continuation:
    """One continuation as it is stored. Every figure of the probe follows from these rows.

    ``right`` is None for a broken rollout and without a judge's verdict. ``faithful`` is the judge's verdict on the
    source's pictures (``signals.faithful``); None where it was not measured.
    """

    source: str  # id of the trajectory that is continued
    question: str  # id of its sample
    task: str
    condition: str
    number: int  # equal numbers of one source share a seed
    seed: int
    answer: str | None
    right: float | None
    source_right: float
    faithful: float | None
    trajectory: Trajectory  # from the start, the prefix included

    @property
    def key(self) -> Key:
        return self.source, self.condition, self.number


def cut_turns(trajectory: Trajectory, cut: Literal["first", "last"]) -> int | None:
    """Number of turns up to the first or last observation with an image that the policy went on from; None without."""
    turns = trajectory.turns
    found = [  # only where the policy went on: after a last observation it wrote nothing that could change
        i + 1
        for i, (turn, after) in enumerate(pairwise(turns))
        if isinstance(turn, EnvTurn) and turn.observation.images and isinstance(after, PolicyTurn)
    ]
    return None if not found else found[0 if cut == "first" else -1]


def eligible(found: Sequence[Scored], probe: CausalProbe) -> list[ProbeSource]:
    """The trajectories that can be continued: plain questions with a measured answer, and a cut."""
    sources: list[ProbeSource] = []
    for scored in found:
        trajectory = scored.trajectory
        turns = cut_turns(trajectory, probe.cut)
        measured = scored.signals.values.get("answer_correct") is not None
        if trajectory.sample.form == "answer" and trajectory.stop is not Stop.BROKEN and measured and turns:
            sources.append(ProbeSource(scored, turns))
    return sources


def choose(sources: Sequence[ProbeSource], most: int, seed: int) -> list[ProbeSource]:
    """At most ``most`` sources, one a question, evenly over the tasks as far as they have enough; in their order.

    The choice does not depend on answers: right and wrong ones are as likely to be taken. Nor does it depend on the
    other sources' number, as a resumed evaluation may have more of them: one more changes one at most.
    """
    piles: dict[str, dict[str, int]] = defaultdict(dict)
    # an order by chance that belongs to each trajectory alone, whichever others there are
    numbers = [derive_seed(seed, "probe", source.scored.trajectory.id) for source in sources]
    for i in sorted(range(len(sources)), key=numbers.__getitem__):
        sample = sources[i].scored.trajectory.sample
        piles[sample.task].setdefault(sample.id, i)
    queues = [list(pile.values()) for _, pile in sorted(piles.items())]
    turns = (queue[n] for n in range(max(map(len, queues), default=0)) for queue in queues if n < len(queue))
    taken = [place for place, _ in zip(turns, range(most), strict=False)]
    return [sources[i] for i in sorted(taken)]


@dataclass(frozen=True)
class ProbePlanner:
    """Makes the requests of a probe. ``samples`` are the questions by form and id, ``sampling`` is a task's."""

    probe: CausalProbe
    seed: int
    images: Images
    samples: Mapping[tuple[str, str], Sample]
    sampling: Callable[[str], Sampling]

    def requests(self, source: ProbeSource) -> Iterator[tuple[Key, RolloutRequest]]:
        """The requests of one source. A condition that the question lacks something for has none."""
        stored = source.scored.trajectory
        for condition in (ORIGINAL, *self.probe.conditions):
            shown = self._shown(source, condition)
            if shown is None:
                continue
            # The prefix keeps its ids: a replacement of the same size has a view, and so placeholders, of the same
            # size.
            prefix = Prefix(stored, source.turns, shown, condition)
            for key in [(stored.id, condition, number) for number in range(self.probe.continuations)]:
                sample = self.samples[stored.sample.form, stored.sample.id]
                # without the condition: continuations of one number draw the same uniforms under each picture
                seed = derive_seed(self.seed, "probe", stored.id, key[2])
                yield key, RolloutRequest(sample, seed, self.sampling(sample.task), prefix)

    def _shown(self, source: ProbeSource, condition: str) -> tuple[ImageRef, ...] | None:
        """The images in place of the observation's; None where the condition cannot be met."""
        stored = source.scored.trajectory
        turn = stored.turns[source.turns - 1]
        assert isinstance(turn, EnvTurn)
        originals = turn.observation.images
        if condition == ORIGINAL:
            return originals
        earlier = [each for each in stored.turns[: source.turns - 1] if isinstance(each, EnvTurn)]
        # images are numbered over the trajectory: the question's, then those of the earlier observations
        start = len(stored.sample.images) + sum(len(each.observation.images) for each in earlier)
        rng = np.random.default_rng(derive_seed(self.seed, "picture", stored.id, condition))
        other = self._other(stored.sample)
        found: list[ImageRef] = []
        for index in range(start, start + len(originals)):
            pixels = CONDITIONS[condition](ToolPicture(stored, index, self.images, other, rng))
            if pixels is None:  # say, no true boxes: the condition is left out of this trajectory and counted
                return None
            found.append(self.images.add(pixels, None, {"op": "replaced", "condition": condition}))
        return tuple(found)

    def _other(self, sample: Sample) -> ImageRef | None:
        """The image of another question: of the same task where there is one with other pixels."""
        mine = {ref.full for ref in sample.images}
        others = [s for s in self.samples.values() if s.images and s.images[0].full not in mine]
        # Of the same task, so that a loss shows the missing evidence and not a picture of another kind.
        among = [s for s in others if s.task == sample.task] or others
        rng = np.random.default_rng(derive_seed(self.seed, "other image", sample.id))
        return among[int(rng.integers(len(among)))].images[0] if among else None


def row(key: Key, source: Scored, trajectory: Trajectory, signals: Signals) -> Continuation:
    """The row to be stored of one continuation."""
    broken = trajectory.stop is Stop.BROKEN
    return Continuation(
        source=key[0],
        question=trajectory.sample.id,
        task=trajectory.sample.task,
        condition=key[1],
        number=key[2],
        seed=trajectory.seed,
        answer=trajectory.answer,
        right=None if broken else _number(signals.values.get("answer_correct")),
        source_right=float(source.signals.values["answer_correct"]),
        faithful=_number(source.signals.values.get("faithful")),
        trajectory=trajectory,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
