"""An engine beside a learner, as a run of RL has them: start, one weight update, and agreement after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from vtcli.algo.parity import DEFAULTS, ParityBounds
from vtcli.engines.parity import EngineAgreement, ParityCheck, disagreement, pooled
from vtcli.engines.policies import IMAGES, ROOM, Engine, Placement, TrainedPolicy, open_policy
from vtcli.engines.probes import LONG, nothing, probing
from vtcli.engines.trials.learner import learner_of, rows
from vtcli.engines.trials.outcome import Trial, TrialResult
from vtcli.families.table import in_environment, open_family
from vtcli.rollout.loop import Limits
from vtcli.rollout.threads import EventLoop

ENGINES = {
    "hf": Engine("hf"),
    "vllm": Engine("vllm", max_batch=32, gpu_memory=0.4, cache_gib=4.0, sleep=2),
    "vllm_server": Engine("vllm_server", max_batch=32, gpu_memory=0.4, cache_gib=4.0, gpus=[0], sleep=2),
}
"""Engines as they are tried. A server shares the first GPU, so that one GPU is enough for this trial."""
FREED = 0.9
"""Share of weights and cache that an engine asleep must have given back at least."""
GAP_AFTER_UPDATE = 1e-3
"""Smallest effect of the step on a log-probability, nats: less, and the update would not show."""


def trial_of(name: str) -> partial[Iterator[TrialResult]]:
    """The trial of one engine."""
    return partial(engine, name)


def engine(name: str, trial: Trial) -> Iterator[TrialResult]:
    """Outcomes in the order in which they become known, so that a crash leaves those before it."""
    family = open_family(trial.folder, in_environment())
    learner = learner_of(family, trial)
    options = ENGINES[name]
    if trial.cpu:
        options = replace(options, cache_gib=1.0, gpus=None, sleep=0)
    begin = time.perf_counter()
    limits, place = Limits(max_tokens=LONG, max_images=IMAGES), Placement(trial.dtype, str(learner.engine.device))
    policy = open_policy(options, family, probing(nothing), limits, place)
    try:
        yield TrialResult(f"{name}: start", "ok", f"{time.perf_counter() - begin:.1f} s")
        check = ParityCheck(policy, learner, family, probing(nothing), trial.dtype, ParityBounds(), LONG)
        with EventLoop() as loop:
            yield agreement(f"{name}: parity at 1008 × 756, several turns", check.run(loop), check)
            learner.step(rows(family, cpu=trial.cpu))
            check = replace(check, room=ROOM) if trial.cpu else check  # small rows: a CPU takes a minute for large ones
            stale = pooled(check.run(loop, 1)).largest
            weights = learner.weights()
            size = sum(value.nbytes for value in weights.values()) / 2**30
            before = _free()
            if options.sleeps:
                yield _asleep(name, policy, size + (options.cache_gib or 0.0))
            yield updated(name, partial(policy.update, weights, 1), size, stale)
            if options.sleeps:
                yield _awake(name, policy, before)
            yield agreement(f"{name}: parity after the update", check.run(loop), check)
    finally:
        policy.close()


def _free() -> float:
    """GiB of the device that no process has, once torch has given back what it only keeps for later."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.empty_cache()  # else the learner's step would count as memory that the engine has freed
    return torch.cuda.mem_get_info()[0] / 2**30


def _asleep(name: str, policy: TrainedPolicy, held: float) -> TrialResult:
    """Memory that sleeping gives back; ``held``: GiB of weights and cache."""
    before, begin = _free(), time.perf_counter()
    policy.sleep()
    seconds, freed = time.perf_counter() - begin, _free() - before
    figure = f"{freed:.1f} of {held:.1f} GiB freed in {seconds:.2f} s"
    if freed < FREED * held:
        return TrialResult(f"{name}: sleep", "broken", figure, "use engine.sleep=0, or servers with GPUs of their own")
    return TrialResult(f"{name}: sleep", "ok", figure)


def _awake(name: str, policy: TrainedPolicy, before: float) -> TrialResult:
    """``before``: free GiB when the engine was awake last."""
    begin = time.perf_counter()
    policy.wake()
    seconds = time.perf_counter() - begin
    return TrialResult(f"{name}: wake", "ok", f"in {seconds:.2f} s, {before - _free():+.1f} GiB beside before")


def updated(name: str, update: Callable[[], None], size: float, stale: float) -> TrialResult:
    """Seconds of one update of ``size`` GiB; ``stale``: the largest difference before it, which the step has made."""
    begin = time.perf_counter()
    update()
    seconds = time.perf_counter() - begin
    figure = f"{size:.2f} GiB in {seconds:.2f} s; the step had moved log-probabilities by up to {stale:.2g} nats"
    if stale < GAP_AFTER_UPDATE:
        return TrialResult(f"{name}: weight update", "broken", figure, "the step changed nothing, so nothing is shown")
    return TrialResult(f"{name}: weight update", "ok", figure)


def agreement(what: str, found: Sequence[EngineAgreement], check: ParityCheck) -> TrialResult:
    """Figures of parity, and whether they are within the bounds of ``check``."""
    figures = pooled(found)
    figure = (
        f"mean KL {figures.mean:.1e}, 99th percentile {figures.p99:.1e}, largest {figures.largest:.1e} nats of "
        f"{figures.tokens} tokens; rows of up to {max(a.length for a in found)} tokens"
    )
    problem = disagreement(found, check.dtype, check.bounds)
    if problem is None:
        return TrialResult(what, "ok", figure)
    bounds = ", ".join(f"{name} ≤ {bound:g}" for name, bound in DEFAULTS[check.dtype].items())
    differs = sorted({line for a in found for line in a.differs})
    return TrialResult(what, "broken", figure, "; ".join([f"bounds: {bounds}", *differs[:2]]))
