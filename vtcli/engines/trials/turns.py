"""vLLM in process as a large run has it: one of engine and learner is in host memory, and steps are planned ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from vtcli.algo.parity import ParityBounds
from vtcli.engines.parity import ParityCheck, pooled
from vtcli.engines.phases import Phases
from vtcli.engines.policies import IMAGES, ROOM, Engine, Placement, open_policy
from vtcli.engines.probes import nothing, probing
from vtcli.engines.trials.engine import ENGINES, GAP_AFTER_UPDATE, agreement
from vtcli.engines.trials.learner import learner_of, rows
from vtcli.engines.trials.outcome import Trial, TrialResult
from vtcli.families.family import Family
from vtcli.families.table import in_environment, open_family
from vtcli.protocols import Request, Sampling
from vtcli.rollout.loop import Limits
from vtcli.rollout.threads import EventLoop
from vtcli.schema import Completion

LIMITS = Limits(max_tokens=ROOM, max_images=IMAGES)
ASKED, SAID = 8, 64
"""Requests whose tokens are compared, and tokens of each."""


def turns(trial: Trial) -> Iterator[TrialResult]:
    """Two rounds of sampling and learning with ``engine.sleep=1`` (0 on a CPU) and ``rl.backend.sleep``."""
    family = open_family(trial.folder, in_environment())
    learner = learner_of(family, trial, sleep=True)
    learner.sleep()
    options = replace(_options(trial), sleep=0 if trial.cpu else 1)
    place = Placement(trial.dtype, str(learner.engine.device))
    policy = open_policy(options, family, probing(nothing), LIMITS, place)
    try:
        phases = Phases(policy, learner, engine_sleeps=options.sleeps, learner_sleeps=True)
        check = ParityCheck(policy, learner, family, probing(nothing), trial.dtype, ParityBounds())
        with EventLoop() as loop:
            sampled = check.sample(loop)
            phases.learn()
            yield agreement(f"turns, engine.sleep={options.sleep}: parity", check.compare(sampled), check)
            learner.step(rows(family, cpu=trial.cpu))
            moved = pooled(check.compare(sampled)).largest
            begin = time.perf_counter()
            phases.generate(1)
            seconds = time.perf_counter() - begin
            sampled = check.sample(loop)
            begin = time.perf_counter()
            phases.learn()
            back = time.perf_counter() - begin
            figure = f"to the engine in {seconds:.2f} s, back in {back:.2f} s; the step moved {moved:.2g} nats"
            good = moved >= GAP_AFTER_UPDATE
            advice = "" if good else "the step changed nothing, so nothing is shown"
            yield TrialResult("turns: changes", "ok" if good else "broken", figure, advice)
            yield agreement("turns: parity after the update", check.compare(sampled), check)
    finally:
        policy.close()


def ahead(trial: Trial) -> Iterator[TrialResult]:
    """Tokens with ``engine.async_scheduling`` on and off. Each request runs alone: others beside it would
    change its rounding."""
    family = open_family(trial.folder, in_environment())
    found = {on: _said(replace(_options(trial), async_scheduling=on), family, trial) for on in (False, True)}
    (off, before), (on, after) = found[False], found[True]
    same = sum(one.token_ids == other.token_ids for one, other in zip(off, on, strict=True))
    figure = f"{same} of {len(off)} requests with the same tokens; {before:.1f} s without, {after:.1f} s with it"
    good = same == len(off)
    advice = "" if good else "leave engine.async_scheduling=false, and report this page"
    yield TrialResult("vllm: async scheduling", "ok" if good else "broken", figure, advice)


def _options(trial: Trial) -> Engine:
    return replace(ENGINES["vllm"], sleep=0, cache_gib=1.0 if trial.cpu else 4.0)


def _said(options: Engine, family: Family, trial: Trial) -> tuple[list[Completion], float]:
    """Completions, one after the other, and their seconds."""
    policy = open_policy(options, family, probing(nothing), LIMITS, Placement(trial.dtype, trial.device))
    prompt = tuple(family.chat.prompt("Look closely.", "What is it?", ()))
    try:
        with EventLoop() as loop:
            loop.run(policy.complete(Request(prompt, (), 1, Sampling(), 0)))  # the prompt is in the cache from now on
            begin = time.perf_counter()
            said = [loop.run(policy.complete(Request(prompt, (), SAID, Sampling(), seed))) for seed in range(ASKED)]
        return said, time.perf_counter() - begin
    finally:
        policy.close()
