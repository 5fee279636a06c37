"""The two sides of ``bench_trl.py``, each run in a process of its own: seconds of every step after the first."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_trl_world import GROUP, LR, NEW_TOKENS, PROMPTS, ROWS, Ask, World, reward

from vtcli.algo import pack
from vtcli.algo.advantages import group_mean
from vtcli.algo.losses import LossConfig
from vtcli.algo.optim import Backend, Optim
from vtcli.families.family import Family
from vtcli.rollout.threads import EventLoop
from vtcli.schema import Group, ImageRef, Scored, Signals, TrainRow, Verdict

OPTIM = Optim(lr=LR, beta2=0.999, grad_clip=1.0)
PLAIN = LossConfig(dual_clip=None, importance="none", skip_zero_advantage=False)


def learner(world: World, *, lines: str = "packed", batch_tokens: int = 2048) -> Any:
    from vtcli.engines.hf import load_model
    from vtcli.engines.learner import deepspeed

    if lines == "one":  # a switch for this comparison only: every row as long as its micro-batch's longest
        deepspeed.batches = padded
    return deepspeed.DeepSpeedLearner(
        load_model(world.family),
        world.family,
        world.images.view,
        optim=OPTIM,
        backend=Backend(batch_tokens=batch_tokens),
        total_steps=10_000,
    )


def padded(rows: Sequence[TrainRow], max_tokens: int, family: Family) -> list[list[TrainRow]]:
    """Micro-batches whose rows times their longest are within the budget, filled up with tokens that nobody learns."""
    out: list[list[TrainRow]] = [[]]
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        if (len(out[-1]) + 1) * len(row.token_ids) > max_tokens:
            out.append([])
        out[-1].append(row)
    return [[_filled(row, len(part[-1].token_ids)) for row in part] for part in out]


def _filled(row: TrainRow, length: int) -> TrainRow:
    more = (0,) * (length - len(row.token_ids))
    return replace(row, token_ids=(*row.token_ids, *more), mask=(*row.mask, *more))


def grpo_ours(world: World, steps: int) -> dict[str, list[float]]:
    """Whole steps as ``vtcli rl`` makes them: rollouts, rewards, credit, one update, the policy's new weights."""
    from vtcli.engines.hf import HfPolicy, load_model
    from vtcli.rollout.loop import GroupRequest, Limits, rollout

    own = learner(world)
    policy = HfPolicy(load_model(world.family), world.family, world.images.view)
    limits = Limits(max_turns=1, max_tokens=512, max_turn_tokens=NEW_TOKENS)
    out: dict[str, list[float]] = {"step": [], "rollout": [], "learn": [], "rest": [], "tokens": []}

    async def roll(step: int) -> list[Group]:
        samples = [world.sample(step * PROMPTS + i) for i in range(PROMPTS)]
        found = await asyncio.gather(
            *(
                asyncio.gather(
                    *(rollout(r, policy, world.family.chat, Ask, limits) for r in GroupRequest(s, GROUP, step).members)
                )
                for s in samples
            )
        )
        return [
            Group(s, tuple(Scored(t, Signals({}), _verdict(t)) for t in members))
            for s, members in zip(samples, found, strict=True)
        ]

    with EventLoop() as loop:
        for step in range(steps):
            begin = time.perf_counter()
            groups = loop.run(roll(step))
            rolled = time.perf_counter()
            rows = [
                pack.to_row(member.trajectory, value)
                for group, credit in zip(groups, group_mean(groups), strict=True)
                for member, value in zip(group.members, credit, strict=True)
                if value is not None
            ]
            ready = time.perf_counter()
            own.step(rows, PLAIN)
            learnt = time.perf_counter()
            policy.update(own.weights(), step + 1)
            end = time.perf_counter()
            times = (end - begin, rolled - begin, learnt - ready, ready - rolled + end - learnt)
            for name, value in zip(out, (*times, sum(map(sum, (row.mask for row in rows)))), strict=True):
                out[name].append(float(value))
    return out


def _verdict(trajectory: Any) -> Verdict:
    value = reward(list(trajectory.policy_turns[0].token_ids))
    return Verdict(value, {"odd": value})


def grpo_trainer(
    world: World, steps: int, folder: Path, micro: int = PROMPTS * GROUP, tools: Any = None, chat: str | None = None
) -> Any:
    """TRL's trainer with the same model, batch, lengths and loss; without what costs it time and us none. ``tools``,
    with ``chat``, a template that knows them: its own loop of calls."""
    from datasets import Dataset
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
    from trl import GRPOConfig, GRPOTrainer

    def odd(completions: Any, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [reward(ids) for ids in completion_ids]

    data = Dataset.from_list([{"nth": i} for i in range(PROMPTS * steps)])
    data = data.with_transform(lambda batch: {"prompt": [world.prompt(i) for i in batch["nth"]]})
    args = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=PROMPTS * GROUP // micro,
        num_generations=GROUP,
        max_completion_length=NEW_TOKENS,
        temperature=1.0,
        beta=0.0,
        loss_type="dapo",  # the mean over the batch's tokens, as ours
        learning_rate=LR,
        max_steps=steps,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        shuffle_dataset=False,
    )
    processor = AutoProcessor.from_pretrained(world.folder)
    if chat is not None:
        processor.chat_template = processor.tokenizer.chat_template = chat
        processor.tokenizer.response_schema = {"type": "object"}
    return GRPOTrainer(
        model=Qwen2_5_VLForConditionalGeneration.from_pretrained(world.folder),
        reward_funcs=odd,
        args=args,
        train_dataset=data,
        processing_class=processor,
        tools=tools,
    )


def sft_trainer(world: World, steps: int, folder: Path, micro: int = ROWS) -> Any:
    """TRL's trainer on the same conversations, padded: it packs no rows with images (it says so)."""
    from datasets import Dataset
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
    from trl import SFTConfig, SFTTrainer

    def rows(batch: dict[str, list[int]]) -> dict[str, Any]:
        """Pictures in a column of their own: that is how this trainer knows that there are any."""
        prompts = [world.prompt(i) for i in batch["nth"]]
        pictures = [[prompt[1]["content"][0].pop("image")] for prompt in prompts]
        said = [[{"role": "assistant", "content": [{"type": "text", "text": world.said(i)}]}] for i in batch["nth"]]
        return {"prompt": prompts, "completion": said, "images": pictures}

    data = Dataset.from_list([{"nth": i} for i in range(ROWS * steps)]).with_transform(rows)
    args = SFTConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=ROWS // micro,
        max_length=None,
        completion_only_loss=True,
        learning_rate=LR,
        max_steps=steps,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    return SFTTrainer(
        model=Qwen2_5_VLForConditionalGeneration.from_pretrained(world.folder),
        args=args,
        train_dataset=data,
        processing_class=AutoProcessor.from_pretrained(world.folder),
    )


def timed(trainer: Any) -> list[float]:
    """Seconds from one step's end to the next's, the first left out by the caller."""
    from transformers import TrainerCallback

    marks = [time.perf_counter()]

    class Marks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(time.perf_counter())

    trainer.add_callback(Marks())
    trainer.train()
    return [after - before for before, after in itertools.pairwise(marks)]


def sft_rows(world: World, step: int, pictures: Sequence[ImageRef]) -> list[TrainRow]:
    rows: list[TrainRow] = []
    for nth in range(step * ROWS, (step + 1) * ROWS):
        image = pictures[nth]
        prompt = world.family.chat.prompt("You are kind.", "<image>Where is the tag?", [image])
        segments = [(prompt, False), (world.family.chat.encode_turn(world.said(nth)), True)]
        rows.append(pack.imitation_row(str(nth), segments, [image]))
    return rows


def sft_ours(world: World, steps: int, lines: str) -> dict[str, list[float]]:
    """From pictures and texts to the update, as the other side's data loader does it. Our pictures are files, as
    ``vtcli sft`` finds them, so reading them is part of a step; the other side gets arrays."""
    pictures = [world.picture(nth) for nth in range(ROWS * steps)]
    world = World.make(world.folder.parent)  # whose store has read none of them
    own = learner(world, lines=lines)
    out: dict[str, list[float]] = {"step": [], "tokens": []}
    for step in range(steps):
        begin = time.perf_counter()
        rows = sft_rows(world, step, pictures)
        own.step(rows)
        out["step"].append(time.perf_counter() - begin)
        out["tokens"].append(float(sum(len(row.token_ids) for row in rows)))
    return out
