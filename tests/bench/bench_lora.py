"""How much of an adapter is lost when it is merged into bf16 weights: log-probabilities of the merged model against
those of the model with its adapter beside it, after AdamW steps on the tiny model.

    python tests/bench/bench_lora.py
"""

from __future__ import annotations

from dataclasses import replace

import _support  # noqa: F401  # for tests/support
import tiny_model
import torch
from tiny_learner import OPTIM, copy, learner, rl_rows

from vtcli.algo.optim import Lora
from vtcli.engines.hf import load_model
from vtcli.families.table import open_family

STEPS = 10


def flat(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for row in values for value in row], dtype=torch.float64)


def gap(one: torch.Tensor, other: torch.Tensor) -> str:
    difference = (one - other).abs()
    return f"{difference.mean():.1e} / {difference.max():.1e}"


def main() -> None:
    rows = rl_rows()
    base = load_model(open_family(tiny_model.folder()), "bfloat16").state_dict()
    print(
        "| rate | the policy moved | bf16: merged, beside | fp32: merged, beside | of the step kept in bf16 weights |"
    )
    print("|--:|--:|--:|--:|--:|")
    for rate in (1e-6, 1e-5, 1e-4):
        cells: list[str] = []
        for dtype in ("bfloat16", "float32"):
            optim = replace(OPTIM, lr=rate, weight_decay=0.0, lora=Lora(rank=4, alpha=8))
            made = learner(optim, zero_stage=2, dtype=dtype)
            for group in made.engine.optimizer.param_groups:
                group["eps"] = 1e-8
            start = flat(made.logprobs(rows))
            for _ in range(STEPS):
                made.step(rows)
            beside, merged = flat(made.logprobs(rows)), copy(made.weights())
            made.optim = OPTIM
            plain = learner(OPTIM, zero_stage=2, dtype=dtype)
            plain.module.model.load_state_dict(merged)
            if not cells:
                cells.append(gap(beside, start))
                kept = [merged[name] != base[name] for name in merged if name.endswith("_proj.weight")]
                share = sum(int(part.sum()) for part in kept) / sum(part.numel() for part in kept)
            cells.append(gap(flat(plain.logprobs(rows)), beside))
        print(f"| {rate:g} | {' | '.join(cells)} | {share:.1%} |")


if __name__ == "__main__":
    main()
