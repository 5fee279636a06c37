"""Rollouts with tools: as a stream against turns in lock-step, and where the time of a real run goes.

python tests/bench/bench_streaming.py                # the comparison, on hf and vLLM (make setup-vllm)
python tests/bench/bench_streaming.py --model MODEL  # and steps of rl +recipe=codev from MODEL, in the real sandbox

MODEL: a folder that ``vtcli sft +recipe=tiny_codev`` made. Tools of the comparison sleep: 95 % of the calls about 20 ms
(log-normal), 5 % a second. Both ways get the same latencies and the same seeds, pair by pair.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import _support  # noqa: F401  # for tests/support
import numpy as np
import tiny_model
from fakes import make_sample

from vtcli.engines.policies import Engine, Placement, TrainedPolicy, open_policy
from vtcli.families.qwen_vl import tiny
from vtcli.families.table import open_family
from vtcli.protocols import Chat, DecodedTurn, Policy, Request, Syntax
from vtcli.rollout.loop import GroupRequest, Limits
from vtcli.rollout.stream import Stream
from vtcli.rollout.threads import EventLoop
from vtcli.schema import Call, Completion, Group, ImageRef, Observation, Sample, Signals, Trajectory, Verdict
from vtcli.statistics.metrics import bootstrap

PROMPTS, GROUP, TURNS = 8, 8, 3
USUAL_S, TAIL_S, TAIL = 0.02, 1.0, 0.05
SPARE = 1.25  # prompts asked for each one wanted, where the rest is cancelled


class Slow:
    """A world whose every call sleeps; ``waits`` are the seconds of its calls."""

    def __init__(self, waits: Sequence[float]) -> None:
        self.waits = list(waits)

    @property
    def syntax(self) -> Syntax:
        return Syntax(read=lambda text: DecodedTurn(text, (Call(text),) if self.waits else (), None))

    async def reset(self) -> tuple[str, str]:
        return "You are kind.", "<image>Where is the tag?"

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        if not turn.calls:
            return None
        await asyncio.sleep(self.waits.pop(0))
        return Observation("Look at this.", (), ())

    async def close(self) -> None: ...


class Worlds:
    """The n-th world that is opened has the n-th row of latencies."""

    def __init__(self, seed: int, count: int) -> None:
        random = np.random.default_rng(seed)
        usual = USUAL_S * np.exp(0.3 * random.standard_normal((count, TURNS)))
        self.waits = np.where(random.random((count, TURNS)) < TAIL, TAIL_S, usual)
        self.opened = 0

    def __call__(self, sample: Sample) -> Slow:
        self.opened += 1
        return Slow(self.waits[self.opened - 1].tolist())


class Cut:
    """Every turn has as many tokens as it may, and is then whole: random weights end none."""

    def __init__(self, policy: TrainedPolicy) -> None:
        self.policy = policy

    version = 0

    async def complete(self, request: Request) -> Completion:
        return replace(await self.policy.complete(request), finish="stop")


class Turns:
    """Lock-step over ``live`` trajectories: a turn begins when every unfinished one is ready for its own."""

    def __init__(self, live: int) -> None:
        self.live, self.ready, self.gate = live, 0, asyncio.Event()

    async def wait(self) -> None:
        """Waits until all trajectories are ready."""
        self.ready += 1
        gate = self.gate
        self._maybe_open()
        await gate.wait()

    def leave(self) -> None:
        """One trajectory is over."""
        self.live -= 1
        self._maybe_open()

    def _maybe_open(self) -> None:
        if 0 < self.live <= self.ready:
            self.gate.set()
            self.ready, self.gate = 0, asyncio.Event()


class InStep:
    """A policy whose trajectories wait for each other."""

    def __init__(self, policy: Policy, turns: Turns) -> None:
        self.policy, self.turns, self.version = policy, turns, policy.version

    async def complete(self, request: Request) -> Completion:
        await self.turns.wait()
        return await self.policy.complete(request)


class Leaving(Slow):
    """A world whose end is its trajectory's."""

    def __init__(self, waits: Sequence[float], turns: Turns) -> None:
        super().__init__(waits)
        self.turns = turns

    async def close(self) -> None:
        self.turns.leave()


async def nothing(trajectories: Sequence[Trajectory]) -> list[Signals]:
    return [Signals({}) for _ in trajectories]


def ones(signals_G: Sequence[Signals]) -> list[Verdict | None]:
    return [Verdict(1.0, {}) for _ in signals_G]


def opened(folder: Path, name: str) -> tuple[TrainedPolicy, Chat]:
    """An engine with a random model, whose heads are as wide as vLLM's attention on a CPU wants them."""
    sizes = replace(tiny_model.SIZES, hidden_size=96, max_positions=1024)
    tiny.build(folder, sizes, tiny.train_tokenizer(tiny_model.TEXTS, sizes.vocab_size), seed=3)
    family = open_family(folder)
    limits = Limits(max_tokens=512, max_images=4)
    engine = Engine("vllm", cache_gib=0.25) if name == "vllm" else Engine("hf", max_batch=32)
    return open_policy(engine, family, tiny_model.store().view, limits, Placement()), family.chat


def asking(nth: int) -> Sample:
    return make_sample(images=(tiny_model.image(nth),))


def rate(
    loop: EventLoop, stream: Stream, seed: int, how: str, sample: Callable[[int], Sample] = asking
) -> tuple[float, float]:
    """Trajectories/s that a step can learn from, and the share of the time in which the engine computed."""
    prompts = round(PROMPTS * (SPARE if how == "full" else 1.0))
    asked = {i: GroupRequest(replace(sample(i), id=f"{seed}-{i}"), GROUP, seed) for i in range(prompts)}
    worlds = Worlds(seed, prompts * GROUP)
    stream = replace(stream, open_env=worlds)
    if how == "lockstep":
        turns = Turns(prompts * GROUP)
        stream = replace(
            stream, policy=InStep(stream.policy, turns), open_env=lambda sample: Leaving(worlds(sample).waits, turns)
        )
    done: list[Group] = []

    def full(group: Group) -> bool:
        done.append(group)
        return how == "full" and len(done) == PROMPTS

    begin = time.perf_counter()
    found = loop.run(stream(asked, ones, full))
    wall = time.perf_counter() - begin
    for group in found.groups.values():
        assert all(len(m.trajectory.policy_turns) == TURNS + 1 for m in group.members), group.members[0].trajectory
    return PROMPTS * GROUP / wall, found.seconds["generate"] / wall


def compare(pairs: int, tokens: int, engine: str) -> None:
    """Prints rates, and ratios with the intervals of their geometric means."""
    ways = ("lockstep", "stream", "full")
    rates: dict[str, list[float]] = {way: [] for way in ways}
    busy: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder, EventLoop() as loop:
        policy, chat = opened(Path(folder) / "model", engine)
        limits = Limits(max_turns=TURNS, max_tokens=512, max_turn_tokens=tokens)
        stream = Stream(Cut(policy), chat, Worlds(0, 0), limits, nothing, policy.clock)
        for way in ways:
            rate(loop, stream, 999, way)  # warm
        for pair in range(pairs):
            for way in ways[:: 1 if pair % 2 else -1]:
                speed, share = rate(loop, stream, pair, way)
                rates[way].append(speed)
                busy[way].append(share)
        policy.close()
    what = f"{PROMPTS} x {GROUP} trajectories, {TURNS} calls, {tokens} tokens a turn"
    print(f"{engine}: {what}; {pairs} pairs; load {_load()}")
    for way in ways:
        ratios = [math.log(a / b) for a, b in zip(rates[way], rates["lockstep"], strict=True)]
        found = bootstrap(ratios, 0)
        low, high = (math.exp(end) if end is not None else float("nan") for end in (found.low, found.high))
        print(
            f"  {way:<9} {statistics.median(rates[way]):6.1f} trajectories/s   engine at work "
            f"{statistics.mean(busy[way]):4.0%}   x {math.exp(found.value):.2f} [{low:.2f}, {high:.2f}]"
        )


def shares(model: Path, engine: str, steps: int, more: Sequence[str]) -> None:
    """Steps of rl +recipe=codev: trajectories/s, and shares of the steps' wall clock."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        common = ("+recipe=codev", "scale=tiny", f"home={home}", "tracker=none")
        counts = [f"data.tasks.zoom.{split}={n}" for split, n in (("train", 64), ("validation", 1), ("test", 1))]
        _vtcli("synth", *common, *counts, "name=data", "synth.workers=1")
        wanted = ["rl.data=data:v1", f"rl.model={model}", f"engine={engine}", f"rl.steps_per_phase={steps + 1}"]
        _vtcli("rl", *common, *wanted, "rl.checkpoint_every=1000", "name=policy", *more)
        lines = (home / "policy" / "v1" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines][1:]  # the first step warms up
    total = {key: sum(line[key] for line in found) for key in found[0] if key.startswith("time/")}
    wall = total["time/step_s"]
    rollouts = sum(line["rollouts"] for line in found)
    parts = {part: total[f"time/{part}_s"] / wall for part in ("generate", "env", "judge", "learn")}
    busy = total["time/generate_s"] / total["time/rollout_s"]
    calls = statistics.mean(line["calls"] for line in found)
    listed = "  ".join(f"{part} {share:.1%}" for part, share in parts.items())
    print(f"{engine}: {len(found)} steps, {rollouts:.0f} trajectories, {calls:.1f} calls each; load {_load()}")
    rest = total["time/other_s"] / wall
    print(f"  {rollouts / wall:.1f} trajectories/s   {listed}   everything else {1 - sum(parts.values()):.1%}", end="")
    print(f" (of which in rollouts {rest:.1%})")
    print(f"  engine at work in {busy:.1%} of the rollouts' time", flush=True)


def _vtcli(*argv: str) -> None:
    done = subprocess.run([sys.executable, "-m", "vtcli", *argv], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        sys.exit(done.stderr[-3000:])


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def main() -> None:
    reading = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reading.add_argument("--model", type=Path, help="a trained base for recipe codev")
    reading.add_argument("--pairs", type=int, default=8)
    reading.add_argument("--tokens", type=int, default=16, help="of a turn of the comparison")
    reading.add_argument("--steps", type=int, default=3)
    reading.add_argument("--engines", default="hf,vllm")
    reading.add_argument("more", nargs="*", help="overrides for rl")
    given: Any = reading.parse_args()
    here = importlib.util.find_spec("vllm") is not None
    engines = [engine for engine in given.engines.split(",") if here or engine != "vllm"]
    if not here:
        print("vllm is not installed here: nothing is measured on it (make setup-vllm)")
    for engine in engines if given.pairs else ():
        compare(given.pairs, given.tokens, engine)
    if given.model is None:
        print("no --model: no shares of time with the real sandbox")
        return
    for engine in engines:
        shares(given.model.resolve(), engine, given.steps, given.more)


if __name__ == "__main__":
    main()
