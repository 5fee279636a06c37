"""The language model's head, in chunks: log-probabilities without the logits of all tokens at once.

Whole logits of a row with 10 000 trained tokens and a vocabulary of 152 064 take 6 GB in fp32. Their softmax and its
gradient take as much again. Here at most ``CHUNK_TOKENS`` rows of logits exist at a time, in both passes. The backward
pass computes them again from the hidden states.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vtcli.engines.drawing import log_distribution

CHUNK_TOKENS = 1024
"""Tokens whose logits exist at a time: 0.6 GB in fp32 at a vocabulary of 152 064."""


Scale = float | Tensor
"""Divisor of the logits: one temperature, or (N, 1) with one for each token."""


class _Logprobs(torch.autograd.Function):
    """``log_distribution(hidden · weightᵀ)[target]`` of every token; entropies and the banned ids' mass where asked."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: Scale,
        with_entropy: bool,
        banned: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.save_for_backward(hidden, weight, targets, banned)
        ctx.temperature = temperature
        picked: list[Tensor] = []
        entropies: list[Tensor] = []
        masses: list[Tensor] = []
        for start in range(0, max(len(hidden), 1), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            states, chosen, scale = hidden[part], targets[part, None], _of(temperature, part)
            logits = functional.linear(states, weight).float()
            left_out = None if banned is None else (logits.index_select(1, banned) / scale).logsumexp(-1)  # (chunk,)
            logprobs = log_distribution(logits, scale, banned)  # (chunk, V); ``logits`` are over the scale now
            picked.append(logprobs.gather(1, chosen).squeeze(1))
            if left_out is not None:
                # A target's logit minus its log-probability is the logarithm of the allowed ids' sum.
                masses.append((left_out - logits.gather(1, chosen).squeeze(1) + picked[-1]).sigmoid())
            del logits
            if with_entropy:
                if banned is not None:
                    logprobs.index_fill_(-1, banned, 0.0)  # 1 · log 1 = 0, where 0 · log 0 would be NaN
                entropies.append(-(logprobs.exp() * logprobs).sum(-1))
        entropy = torch.cat(entropies) if with_entropy else None
        mass = torch.cat(masses) if banned is not None else None
        ctx.mark_non_differentiable(*(value for value in (entropy, mass) if value is not None))
        return torch.cat(picked), entropy, mass

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, _entropy: Tensor | None, _mass: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        """Gradient of the log-probability: with q the distribution, d log q[target] / dz = (onehot(target) - q) / T.
        Banned ids have q = 0 and get none."""
        hidden, weight, targets, banned = ctx.saved_tensors
        to_hidden, to_weight = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden) if to_hidden else None
        # fp32, because a sum over chunks in bf16 would lose its last bits.
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if to_weight else None
        for start in range(0, len(hidden), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            states, given, scale = hidden[part], grad[part].float(), _of(ctx.temperature, part)
            logprobs = log_distribution(functional.linear(states, weight).float(), scale, banned)
            logits_grad = logprobs.exp_().mul_(-given[:, None])  # (chunk, V)
            logits_grad[torch.arange(len(given), device=given.device), targets[part]] += given
            logits_grad = logits_grad.div_(scale).to(hidden.dtype)
            if hidden_grad is not None:
                hidden_grad[part] = logits_grad @ weight
            if weight_grad is not None:
                weight_grad += logits_grad.T @ states
        return hidden_grad, None if weight_grad is None else weight_grad.to(weight.dtype), None, None, None, None


def _of(temperature: Scale, part: slice) -> Scale:
    return temperature[part] if isinstance(temperature, Tensor) else temperature


def token_logprobs(
    head: nn.Linear, hidden: Tensor, targets: Tensor, temperature: Scale, *, entropy: bool, banned: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Log-probabilities (N,) of ``targets`` (N,) after ``hidden`` (N, H), in fp32; entropies (N,) in nats; and the
    share (N,) of the probability that the model would give to the ids of ``banned``. ``temperature`` is a number or
    (N, 1). Without ``banned`` the distribution is the whole vocabulary's, and there is no share.

    ``head`` is called once, so that ZeRO-3 gathers its weight once, however many chunks there are.
    """
    return head(hidden, targets, temperature, entropy, banned)


def use(head: Any) -> nn.Linear:
    """Lets a linear layer without bias answer ``token_logprobs`` too; returns the same layer, which still gives logits.

    Raises:
        TypeError: the head is something else, so that chunks of it could mean something else.
    """
    if not isinstance(head, nn.Linear) or "bias" in dict(head.named_parameters()):
        raise TypeError(f"expected a head that is a linear layer without bias, got {head}")

    def forward(
        self: nn.Linear,
        hidden: Tensor,
        targets: Tensor | None = None,
        temperature: float = 1.0,
        with_entropy: bool = False,
        banned: Tensor | None = None,
    ) -> Any:
        if targets is None:
            return functional.linear(hidden, self.weight)
        return _Logprobs.apply(hidden, self.weight, targets, temperature, with_entropy, banned)

    # Through the module's own forward, because ZeRO-3 gathers a weight in the hooks around it.
    head.forward = MethodType(forward, head)
    return head
