"""Loss and gradients of TRL and of this learner on the same rows: ids, pictures, advantages, old log-probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from bench_trl_sides import PLAIN, grpo_trainer, learner
from bench_trl_world import GROUP, World
from torch import Tensor

from vtcli.schema import TrainRow


def same_loss(world: World, folder: Path) -> dict[str, Any]:
    """TRL's loss of a batch that it sampled, and ours. Old log-probabilities are TRL's of now, moved by up to 0.35, so
    that ratios lie on both sides of the clipping."""
    trainer = grpo_trainer(world, 1, folder)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions([{**row} for row in _repeated(trainer)])
    batch["old_per_token_logps"] = _moved(_logps(trainer, batch))
    trainer.model.zero_grad()
    theirs = trainer._compute_loss(trainer.model, batch)
    theirs.backward()
    rows = _rows(world, batch)
    own = learner(world)
    own.module.banned = own.module.banned[:0]  # TRL draws from the whole vocabulary, and so is its loss
    kept: dict[str, Tensor] = {}
    own.engine.step = _keeping(own, kept)  # what the optimiser would get, before it moves anything
    metrics = own.step(rows, PLAIN)
    wanted = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    gaps = [float((kept[name] - g).abs().max() / g.abs().max()) for name, g in wanted.items() if g.abs().max() > 0]
    ratio = (_logps(trainer, batch) - batch["old_per_token_logps"]).exp()[batch["completion_mask"].bool()]
    return {
        "rows": len(rows),
        "ours": metrics["loss"],
        "theirs": float(theirs),
        "gradient": max(gaps),
        "clipped": float(((ratio < 0.8) | (ratio > 1.2)).float().mean()),
    }


def _repeated(trainer: Any) -> list[dict[str, Any]]:
    return [trainer.train_dataset[i // GROUP] for i in range(trainer.args.per_device_train_batch_size)]


def _logps(trainer: Any, batch: dict[str, Any]) -> Tensor:
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    extra = {k: batch[k] for k in ("pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids") if k in batch}
    with torch.no_grad():
        found = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, batch["completion_ids"].size(1), **extra
        )
    return found[0]


def _moved(logps: Tensor) -> Tensor:
    shift = torch.rand(logps.shape, generator=torch.Generator().manual_seed(0)) - 0.5
    return logps + 0.7 * shift


def _rows(world: World, batch: dict[str, Any]) -> list[TrainRow]:
    out: list[TrainRow] = []
    for i in range(len(batch["prompt_ids"])):
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
        said = batch["completion_mask"][i].bool()
        ids, old = batch["completion_ids"][i][said].tolist(), batch["old_per_token_logps"][i][said].tolist()
        advantage, zeros = float(batch["advantages"][i]), [0.0] * len(prompt)
        out.append(
            TrainRow(
                id=str(i),
                token_ids=(*prompt, *ids),
                mask=(*[0] * len(prompt), *[1] * len(ids)),
                images=(world.picture(i // GROUP),),
                logprobs=(*zeros, *old),
                advantages=(*zeros, *[advantage] * len(ids)),
            )
        )
    return out


def _keeping(own: Any, kept: dict[str, Tensor]) -> Any:
    step = own.engine.step

    def keep() -> None:
        for name, p in own.module.model.named_parameters():
            if p.grad is not None:
                kept[name] = p.grad.detach().clone()
        step()

    return keep
