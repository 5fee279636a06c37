"""Parity of policy and learner: the same rows through both, and the input that differs if they disagree.

A difference in inputs raises no error by itself: one side resizes an image, counts positions differently, or never got
the weights. Training would go on with wrong importance ratios, so the check runs at the start and refuses.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from vtcli.algo.parity import NAMES, Dtype, Gaps, ParityBounds
from vtcli.engines.inputs import EngineInput, seen
from vtcli.engines.plain import plain_gaps
from vtcli.engines.policies import IMAGES, ROOM, Engine, Placement, TrainedPolicy, open_policy
from vtcli.engines.probes import LONG, Probes, nothing, probing, rows
from vtcli.errors import EngineError
from vtcli.families.family import Family, PlainForward
from vtcli.foreign import print_line
from vtcli.protocols import Request, Sampling, View
from vtcli.rollout.loop import Limits, derive_seed
from vtcli.rollout.threads import EventLoop, Runs
from vtcli.schema import TrainRow

ROUNDS = 8
"""Largest number of rounds of rows, where a model ends its turns early."""
TURN_TOKENS = {"float32": 12, "bfloat16": 32}
SHOWN = 5
"""Number of rows that an error shows, the worst first."""


class Logprobs(Protocol):
    """Interface that parity needs of the learner."""

    def logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]: ...


@dataclass(frozen=True)
class EngineAgreement:
    """Policy and learner on one row."""

    name: str
    images: int
    length: int  # of the row
    gaps: tuple[float, ...]  # learner - policy at every sampled token, nats
    differs: tuple[str, ...]  # inputs, a sentence each

    @property
    def figures(self) -> Gaps:
        return Gaps.of(self.gaps)


@dataclass(frozen=True)
class SampledRow:
    """A row that the policy sampled, and how it read the row: known of the first round's rows."""

    row: TrainRow
    reading: EngineInput | None


@dataclass(frozen=True)
class ParityCheck:
    """Engines to be compared. ``view`` and both engines must know the probes (``probing``), and the learner the
    temperature."""

    policy: TrainedPolicy
    learner: Logprobs
    family: Family
    view: View
    dtype: Dtype = "float32"
    bounds: ParityBounds = field(default_factory=ParityBounds)
    room: int = ROOM  # tokens of a row, at most
    temperature: float = 1.0

    def sample(self, loop: Runs, seed: int = 0) -> list[SampledRow]:
        """Rows of as many rounds as the bounds want tokens. The learner has no part in it, and may be asleep."""
        found: list[SampledRow] = []
        probes = Probes(seed, min(LONG, self.room), TURN_TOKENS[self.dtype], Sampling(self.temperature))
        for nth in range(ROUNDS):
            drawn = loop.run(rows(self.policy, self.family, replace(probes, seed=derive_seed(seed, nth))))
            found += [SampledRow(row, self._reading(row) if nth == 0 else None) for row in drawn]
            if sum(sum(each.row.mask) for each in found) >= self.bounds.pooled(self.dtype):
                break
        return found

    def compare(self, sampled: Sequence[SampledRow]) -> list[EngineAgreement]:
        """The same rows, computed by the learner. The policy has no part in it, and may be asleep."""
        known = self.learner.logprobs([each.row for each in sampled])
        return [self._compared(each, values) for each, values in zip(sampled, known, strict=True)]

    def run(self, loop: Runs, seed: int = 0) -> list[EngineAgreement]:
        """Both, where policy and learner are awake together."""
        return self.compare(self.sample(loop, seed))

    def _reading(self, row: TrainRow) -> EngineInput:
        return self.policy.seen(Request(row.token_ids, row.images, 1, Sampling(), 0))

    def _compared(self, sampled: SampledRow, known: Sequence[float]) -> EngineAgreement:
        row = sampled.row
        said = [value for value, m in zip(row.logprobs or (), row.mask, strict=True) if m]
        gaps = tuple((np.array(known) - np.array(said)).tolist())
        differs: list[str] = []
        if sampled.reading is not None:
            differs = sampled.reading.differences(seen(row.token_ids, row.images, self.family, self.view))
        return EngineAgreement(row.id, len(row.images), len(row.token_ids), gaps, tuple(differs))


def pooled(found: Sequence[EngineAgreement]) -> Gaps:
    """Figures of all tokens of some rows."""
    return Gaps.of(gap for a in found for gap in a.gaps)


def disagreement(found: Sequence[EngineAgreement], dtype: Dtype, bounds: ParityBounds, where: str = "") -> str | None:
    """Returns a message with the gaps, the differing inputs and the remedy, or None if policy and learner agree."""
    figures, limits = pooled(found), bounds.bounds(dtype)
    over = figures.exceeded(limits)
    if not over:
        return None
    lines = [f"policy and learner disagree{where} ({dtype}, {figures.tokens} sampled tokens of {len(found)} rows):"]
    for name in over:
        measured, bound = getattr(figures, name), limits[name]
        lines.append(f"  {NAMES[name]}: {measured:.3g} nats, and at most {bound:g} is accepted (rl.parity.{name})")
    worst = sorted(found, key=lambda a: -np.nan_to_num(a.figures.mean, nan=np.inf))[:SHOWN]
    for a in worst:
        own = a.figures
        lines.append(
            f"  - {a.name}: {a.length} tokens, {own.tokens} of them sampled, {a.images} images: "
            f"up to {own.largest:.3g}, mean KL {own.mean:.3g}"
        )
        lines += [f"      {line} (policy and learner)" for line in a.differs]
    if any(a.differs for a in found):
        lines.append(
            "The inputs differ as listed: correct the model's processor and tokenizer files, or use engine=hf."
        )
    else:
        lines.append(
            "All inputs are equal (ids, pixels, positions), so the weights or the arithmetic differ: check that both "
            "loaded the same model and dtype, or use engine=hf."
        )
    lines.append(
        "Another start compares other rows. If the figures are as expected of these engines, raise the bound named "
        "above, or go on in spite of it with rl.parity.refuse=false."
    )
    return "\n".join(lines)


def require(found: Sequence[EngineAgreement], dtype: Dtype) -> None:
    """Refuses to go on if policy and learner disagree.

    Raises:
        EngineError: with the figures, the rows, and the inputs that differ.
    """
    if (problem := disagreement(found, dtype, ParityBounds())) is not None:
        raise EngineError(problem)


def starts(log: Path) -> int:
    """Returns the number of earlier starts, which seeds this start's rows. All ranks call this together."""
    from vtcli.engines.learner.distributed import gather, init_distributed

    rank, _ = init_distributed()
    return gather(len(log.read_text().splitlines()) if rank == 0 and log.is_file() else 0)[0]


def require_at_start(check: ParityCheck, sampled: Sequence[SampledRow], log: Path) -> None:
    """``require`` on every rank at the start of a run, each with other rows. All ranks call this together; the
    first one adds a line to ``log``.

    Raises:
        EngineError: a rank leaves a bound, unless ``bounds.refuse`` is false.
    """
    from vtcli.engines.learner.distributed import gather, init_distributed

    rank, _ = init_distributed()
    parts = gather(check.compare(sampled))
    # Pooled over ranks, one rank with wrong weights among many would not show.
    nth, problem = worst_rank(parts, check.dtype, check.bounds)
    if rank == 0:
        line = {"dtype": check.dtype, "rank": nth, "agree": problem is None, **asdict(pooled(parts[nth]))}
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
    if problem is not None and check.bounds.refuse:
        raise EngineError(problem)
    if problem is not None and rank == 0:
        print_line(f"rl: {problem}\nrl: goes on in spite of it (rl.parity.refuse=false)")


def worst_rank(
    parts: Sequence[Sequence[EngineAgreement]], dtype: Dtype, bounds: ParityBounds
) -> tuple[int, str | None]:
    """Returns the rank outside a bound that has the largest mean gap, and its message; if all are within, the rank with
    the largest mean gap, and None."""
    order = sorted(range(len(parts)), key=lambda i: np.nan_to_num(pooled(parts[i]).mean, nan=np.inf), reverse=True)
    for nth in order:
        said = disagreement(parts[nth], dtype, bounds, f" on rank {nth}" if len(parts) > 1 else "")
        if said is not None:
            return nth, said
    return order[0], None


@dataclass(frozen=True)
class ModelParity:
    """Agreement on one model folder."""

    engines: list[EngineAgreement]  # policy and learner
    plain: Gaps | None  # learner and transformers' own forward pass; None: the family cannot ask that


def check(family: Family, engine: Engine, dtype: Dtype) -> ModelParity:
    """Agreement on a model, with engines opened for it. They are gone before transformers' own model is loaded."""
    import torch

    view = probing(nothing)
    agreements, own, known = _engines(family, engine, dtype, view)
    if not isinstance(family, PlainForward):
        return ModelParity(agreements, None)
    gc.collect()  # modules and their hooks refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return ModelParity(agreements, plain_gaps(family, dtype, own, known, view))


def _engines(
    family: Family, engine: Engine, dtype: Dtype, view: View
) -> tuple[list[EngineAgreement], list[TrainRow], list[list[float]]]:
    """Agreement of the engines, the rows that were compared, and the learner's log-probabilities of them."""
    from vtcli.algo.optim import Backend, Optim
    from vtcli.engines.hf import load_model
    from vtcli.engines.learner.deepspeed import DeepSpeedLearner

    room = max(ROOM, min(LONG, family.max_tokens))
    learner = DeepSpeedLearner(
        load_model(family, dtype),
        family,
        view,
        optim=Optim(),
        backend=Backend(dtype=dtype, zero_stage=2 if dtype == "bfloat16" else 0),
        total_steps=1,
    )
    place = Placement(dtype, str(learner.engine.device))
    policy = open_policy(engine, family, view, Limits(max_tokens=room, max_images=IMAGES), place)
    try:
        with EventLoop() as loop:
            compared = ParityCheck(policy, learner, family, view, dtype, room=room)
            sampled = compared.sample(loop)
            agreements = compared.compare(sampled)
    finally:
        policy.close()
    own = [each.row for each in sampled]
    known = learner.logprobs(own) if isinstance(family, PlainForward) else []
    learner.engine.destroy()  # removes DeepSpeed's hooks, which would hold the weights
    return agreements, own, known
