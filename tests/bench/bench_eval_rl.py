"""Trajectories a second: the rollouts of ``eval`` beside those of ``rl`` at the same settings, in turns in one process.

    python tests/bench/bench_eval_rl.py [--rounds 6] [--folder FOLDER]

Both stages run whole, on the engine ``hf`` with the base model that comes with vtcli: 16 questions, 8 answers each, all
at once, with tools. Timed is what draws and measures the rollouts; of ``eval`` with storing them. Questions and seeds
are the same, and so are the trajectories, which is checked.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages import eval as evaluation
from stages import rl, synth
from vtcli.config import compose
from vtcli.rollout.loop import derive_seed
from vtcli.rollout.stream import Stream
from vtcli.schema import Scored
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.models import SHIPPED

QUESTIONS, GROUP = 16, 8
TASKS = ("rotflip", "zoom", "read_value", "count")
PHASE = "{name: answers, steps: 1, form: answer, reward: {_target_: vtcli.rewards.toolsrl.stage2}}"


@dataclass(frozen=True)
class Measured:
    """One run: seconds of wall clock and CPU for ``count`` trajectories."""

    wall_s: float
    cpu_s: float
    count: int


FOUND: list[Measured] = []


def timed(name: str, count: Callable[[Any], int]) -> None:
    """Replaces a method of ``Stream`` by itself with a clock."""
    real = getattr(Stream, name)

    @functools.wraps(real)
    async def call(self: Stream, requests: Any, *given: Any, **named: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        found = await real(self, requests, *given, **named)
        FOUND.append(Measured(time.perf_counter() - wall, time.process_time() - cpu, count(requests)))
        return found

    setattr(Stream, name, call)


def run(stage: Any, name: str, words: Sequence[str]) -> tuple[Artifact, Measured | None]:
    FOUND.clear()
    made = stage.run(compose.build(stage.Config, compose.load(name, list(words))))
    return made, FOUND[0] if FOUND else None


def drawn(made: Artifact) -> list[tuple[Any, ...]]:
    """The tokens of every trajectory, in one order for both stages."""
    found = [scored.trajectory for scored in records.read(made.path / "trajectories.jsonl", Scored)]
    return sorted((t.sample.id, t.seed, *(turn.token_ids for turn in t.policy_turns)) for t in found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    timed("each", len)
    timed("__call__", lambda requests: sum(request.size for request in requests.values()))
    home = (given.folder or Path(tempfile.mkdtemp(prefix="bench-eval-rl-"))) / "artifacts"
    model = ArtifactStore(home).add(next(path.parent for path in SHIPPED.rglob("manifest.json")))
    words = ["+recipe=toolsrl", "scale=tiny", "tracker=none", f"home={home}", "reuse=false"]
    sizes = [f"data.tasks.{task}.{split}=4" for task in TASKS for split in ("train", "validation", "test")]
    data, _ = run(synth, "synth", [*words, *sizes, "synth.workers=1", "synth.sheet=1"])
    both = [f"model={model.ref}", f"data={data.ref}"]
    training = [f"rl.phases=[{PHASE}]", f"rl.prompts_per_step={QUESTIONS}", f"rl.group_size={GROUP}"]
    training += ["rl.allow_no_update=true"]
    asking = [
        "eval.split=train",
        "eval.forms=[answer]",
        f"eval.group_size={GROUP}",
        "eval.agent.sampling.temperature=1.0",
        f"eval.concurrency={QUESTIONS * GROUP}",
    ]
    pairs: list[tuple[Measured, Measured]] = []
    for number in range(given.rounds + 1):  # the first warms up
        learnt, ours = run(rl, "rl", [*words, *both, *training, f"seed={number}"])
        asked, theirs = run(evaluation, "eval", [*words, *both, *asking, f"seed={derive_seed(number, 'rollout', 0)}"])
        assert ours and theirs and ours.count == theirs.count == QUESTIONS * GROUP
        same = drawn(learnt) == drawn(asked)
        rates = [each.count / each.wall_s for each in (ours, theirs)]
        print(f"{number}: rl {rates[0]:.2f}/s, eval {rates[1]:.2f}/s, same trajectories: {same}", flush=True)
        if number:
            pairs.append((ours, theirs))
    for name in ("wall_s", "cpu_s"):
        ratios = sorted(getattr(ours, name) / getattr(theirs, name) for ours, theirs in pairs)
        total = sum(getattr(ours, name) for ours, _ in pairs) / sum(getattr(theirs, name) for _, theirs in pairs)
        middle, ends = statistics.median(ratios), f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(f"eval / rl by {name}: {total:.3f} in all, median {middle:.3f}, {ends}")


if __name__ == "__main__":
    main()
