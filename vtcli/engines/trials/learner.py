"""One learner step of a two-layer model with the layers of Qwen2.5-VL-7B; on a CPU of the miniature."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from vtcli.algo.optim import Backend, Optim
from vtcli.engines.hf import load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.engines.probes import nothing, probe, probing
from vtcli.engines.trials.device import data_sheet
from vtcli.engines.trials.outcome import Trial, TrialResult
from vtcli.families.family import Family
from vtcli.families.table import in_environment, open_family
from vtcli.plan.architecture import Architecture, from_folder
from vtcli.plan.steptime import head_flops, text_flops, vision_flops
from vtcli.schema import TrainRow

ROWS, TOKENS, TRAINED = 4, 4096, 2048
STEPS = 3
GOOD_MFU = 0.4
"""Share that the field's best trainers reach at this size; less is reported as slow."""


def learner_of(family: Family, trial: Trial, *, sleep: bool = False) -> DeepSpeedLearner:
    """The learner on the trial's model, as a run of RL has it; with ``sleep`` its states can leave the device."""
    return DeepSpeedLearner(
        load_model(family, trial.dtype),
        family,
        probing(nothing),
        optim=Optim(lr=1e-4),
        backend=Backend(dtype=trial.dtype, zero_stage=0 if trial.cpu and not sleep else 2, sleep=sleep),
        total_steps=10,
    )


def rows(family: Family, *, cpu: bool, times: int = 1) -> list[TrainRow]:
    """Trajectories of one image each, half of whose tokens are trained; ``times`` as many."""
    count, tokens, trained, size = (2, 128, 64, (112, 84)) if cpu else (ROWS, TOKENS, TRAINED, (1008, 756))
    return [row(family, nth, (tokens, trained), size) for nth in range(times * count)]


def row(family: Family, nth: int, lengths: tuple[int, int], size: tuple[int, int], images: int = 1) -> TrainRow:
    """A trajectory with pictures of a ``size`` (width, height). ``lengths`` are its tokens, and the trained ones at its
    end. It is longer than asked where the prompt leaves no room for these."""
    pictures = [probe(nth * images + at, family, size) for at in range(images)]
    prompt = family.chat.prompt("Look closely.", "<image>" * images + "What is it?", pictures)
    (word, *_) = family.chat.encode_turn("it")
    ids = (*prompt, *[word] * max(lengths[0] - len(prompt), lengths[1]))
    start = len(ids) - lengths[1]
    mask = tuple(int(i >= start) for i in range(len(ids)))
    logprobs = tuple(-1.0 if m else 0.0 for m in mask)
    advantages = tuple((1.0 if nth % 2 else -1.0) if m else 0.0 for m in mask)
    return TrainRow(str(nth), ids, mask, tuple(pictures), logprobs, advantages)


def step(trial: Trial) -> Iterator[TrialResult]:
    """Tokens a second, and the share of the data sheet's FLOP/s (MFU) of a further micro-batch.

    Two of 28 layers beside the whole vocabulary would give the optimiser too large a part. So MFU is that of the
    difference between a step of two micro-batches and one of one.
    """
    family = open_family(trial.folder, in_environment())
    learner, batch = learner_of(family, trial), rows(family, cpu=trial.cpu)
    tokens = sum(len(row.token_ids) for row in batch)
    seconds, updated = _fastest(learner, batch)
    figure = f"{tokens} tokens of {len(batch)} rows in {seconds:.2f} s, {tokens / seconds:,.0f} tokens/s"
    if not updated:
        yield TrialResult("learner step", "broken", figure, "no update was made: the gradients were not finite")
        return
    known = None if trial.cpu else data_sheet()
    if known is None:
        yield TrialResult("learner step", "ok", figure)
        return
    further = _fastest(learner, rows(family, cpu=False, times=2))[0] - seconds
    mfu = _flops(from_folder(trial.folder), batch) / further / (known.bf16 * 1e12)
    peak = torch.cuda.max_memory_allocated() / 2**30
    figure += f"; as many more in {further:.2f} s, MFU {mfu:.0%} of {known.kind}; {peak:.1f} GiB at most"
    advice = "" if mfu >= GOOD_MFU else "compare with docs/benchmarks.md; profile with `nsys profile` if far below"
    yield TrialResult("learner step", "ok" if mfu >= GOOD_MFU else "slow", figure, advice)


def _fastest(learner: DeepSpeedLearner, batch: Sequence[TrainRow]) -> tuple[float, bool]:
    """Seconds of the fastest of some steps, and whether the last one was an update."""
    times: list[float] = []
    metrics: dict[str, float] = {}
    for _ in range(STEPS):
        begin = time.perf_counter()
        metrics = learner.step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times), bool(metrics["updated"])


def _flops(arch: Architecture, batch: Sequence[TrainRow]) -> float:
    """FLOPs of a step: a backward pass takes twice its forward pass."""
    factor = arch.vision.factor // arch.vision.merge  # pixels of a patch's side
    total = 0.0
    for row in batch:
        (picture,) = row.images
        patches = picture.view_width * picture.view_height / factor**2
        total += text_flops(arch, len(row.token_ids)) + head_flops(arch, sum(row.mask))
        total += vision_flops(arch, patches, patches)
    return 3 * total
