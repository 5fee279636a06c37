"""Rollouts with three slow tool calls: vtcli's stream and its turns in lock-step beside TRL's own tool loop.

python tests/bench/bench_trl_tools.py                  # where TRL is installed: make bench-trl's environment

The same Qwen2.5-VL in miniature with random weights, 8 prompts x 8, one picture, 16 new tokens a turn, transformers'
generation on both sides, fp32. A call sleeps about 20 ms, and a second in 5 % of the cases; all sides get the same
latencies in pairs. Random weights write no calls, so on both sides every turn but the fourth is taken for one; on
TRL's that is all that is replaced (``parse_response``), besides a chat template that knows tools.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench_streaming as ours
from bench_trl_sides import grpo_trainer
from bench_trl_world import World

from vtcli.engines.policies import Engine, Placement, open_policy
from vtcli.rollout.loop import Limits
from vtcli.rollout.stream import Stream
from vtcli.rollout.threads import EventLoop
from vtcli.statistics.metrics import bootstrap

COUNT = ours.PROMPTS * ours.GROUP
CHAT = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|>\
<|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}\
{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class TheirLoop:
    """TRL's trainer, of which only the rollouts are made."""

    def __init__(self, world: World, folder: Path, tokens: int) -> None:
        from trl.trainer import grpo_trainer as module

        self.world, self.waits, self.turns = world, iter(()), 0
        module.parse_response = self._parsed
        look = self._tool()
        self.trainer = grpo_trainer(world, 1, folder, tools=[look], chat=CHAT)
        # As its step of training sets them.
        self.trainer._sync_tool_dicts, self.trainer._async_tool_dicts = [{"look": look}] * COUNT, [{}] * COUNT
        self.trainer.max_completion_length = 512
        for name in ("max_new_tokens", "min_new_tokens"):
            setattr(self.trainer.generation_config, name, tokens)

    def _tool(self) -> Any:
        def look(place: int) -> str:
            """Looks at a place.

            Args:
                place: Its number.

            Returns:
                What is seen there.
            """
            time.sleep(next(self.waits))
            return "Look at this."

        return look

    def _parsed(self, *_: Any, **__: Any) -> dict[str, Any]:
        """The first three turns of all trajectories are calls."""
        call = {"type": "function", "function": {"name": "look", "arguments": {"place": 1}}}
        self.turns += 1
        more = {"tool_calls": [call]} if self.turns <= ours.TURNS * COUNT else {}
        return {"role": "assistant", "content": "x", **more}

    def rate(self, seed: int) -> float:
        """Trajectories/s."""
        waits = ours.Worlds(seed, COUNT).waits
        self.waits, self.turns = iter(waits.T.flatten().tolist()), 0
        prompts = [self.world.prompt(i) for i in range(ours.PROMPTS) for _ in range(ours.GROUP)]
        begin = time.perf_counter()
        self.trainer._generate(prompts)
        wall = time.perf_counter() - begin
        assert next(self.waits, None) is None, "a call was left out"
        assert self.turns == (ours.TURNS + 1) * COUNT
        return COUNT / wall


def sides(folder: Path, tokens: int, loop: EventLoop) -> Iterator[tuple[str, Any]]:
    """Name and, for a seed, trajectories/s of each side; what is opened stays open until the end."""
    world = World.make(folder)
    limits = Limits(max_turns=ours.TURNS, max_tokens=512, max_turn_tokens=tokens)
    policy = open_policy(Engine("hf", max_batch=COUNT), world.family, world.images.view, limits, Placement())
    stream = Stream(ours.Cut(policy), world.family.chat, ours.Worlds(0, 0), limits, ours.nothing, policy.clock)
    for how in ("stream", "lockstep"):
        yield f"vtcli, {how}", lambda seed, how=how: ours.rate(loop, stream, seed, how, world.sample)[0]
    yield "TRL's tool loop", TheirLoop(world, folder / "trl", tokens).rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EventLoop() as loop:
        found = dict(sides(Path(folder), given.tokens, loop))
        rates: dict[str, list[float]] = {name: [] for name in found}
        for pair in range(-1, given.pairs):  # the first one warms up
            for name in list(found)[:: 1 if pair % 2 else -1]:
                rates[name] += [found[name](pair + 1)]
    theirs = rates["TRL's tool loop"][1:]
    for name, every in rates.items():
        ratio = bootstrap([math.log(a / b) for a, b in zip(every[1:], theirs, strict=True)], 0)
        low, high = (math.exp(end) if end is not None else float("nan") for end in (ratio.low, ratio.high))
        speed = f"{name:<16} {statistics.median(every[1:]):6.1f} trajectories/s"
        print(f"{speed}   x {math.exp(ratio.value):.2f} [{low:.2f}, {high:.2f}] of TRL's")


if __name__ == "__main__":
    main()
