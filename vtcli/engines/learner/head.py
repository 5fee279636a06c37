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

CHUNK_TOKENS = 1024
"""Tokens whose logits exist at a time: 0.6 GB in fp32 at a vocabulary of 152 064."""


Scale = float | Tensor
"""Divisor of the logits: one temperature, or (N, 1) with one for each token."""


class _Logprobs(torch.autograd.Function):
    """``log_softmax(hidden · weightᵀ / temperature)[target]`` of every token, and the entropies where asked."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Scale, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(hidden, weight, targets)
        ctx.temperature = temperature
        picked: list[Tensor] = []
        entropies: list[Tensor] = []
        for start in range(0, max(len(hidden), 1), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            states, chosen = hidden[part], targets[part]
            logprobs = _log_softmax(states, weight, _of(temperature, part))  # (chunk, V)
            picked.append(logprobs.gather(1, chosen[:, None]).squeeze(1))
            if with_entropy:
                entropies.append(-(logprobs.exp() * logprobs).sum(-1))
        entropy = torch.cat(entropies) if with_entropy else None
        if entropy is not None:
            ctx.mark_non_differentiable(entropy)
        return torch.cat(picked), entropy

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, _entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        """Gradient of the log-probability: with p = softmax(z / T), d logp[target] / dz = (onehot(target) - p) / T."""
        hidden, weight, targets = ctx.saved_tensors
        to_hidden, to_weight = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden) if to_hidden else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if to_weight else None
        for start in range(0, len(hidden), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            states, given = hidden[part], grad[part].float()
            logits_grad = (
                _log_softmax(states, weight, _of(ctx.temperature, part)).exp_().mul_(-given[:, None])
            )  # (chunk, V)
            logits_grad[torch.arange(len(given), device=given.device), targets[part]] += given
            logits_grad = logits_grad.div_(_of(ctx.temperature, part)).to(hidden.dtype)
            if hidden_grad is not None:
                hidden_grad[part] = logits_grad @ weight
            if weight_grad is not None:
                weight_grad += logits_grad.T @ states
        return hidden_grad, None if weight_grad is None else weight_grad.to(weight.dtype), None, None, None


def _of(temperature: Scale, part: slice) -> Scale:
    return temperature[part] if isinstance(temperature, Tensor) else temperature


def _log_softmax(states: Tensor, weight: Tensor, temperature: Scale) -> Tensor:
    return (functional.linear(states, weight).float() / temperature).log_softmax(-1)


def token_logprobs(
    head: nn.Linear, hidden: Tensor, targets: Tensor, temperature: Scale, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (N,) of ``targets`` (N,) after ``hidden`` (N, H), in fp32, and entropies (N,) in nats.
    ``temperature`` is a number or (N, 1).

    ``head`` is called once, so that ZeRO-3 gathers its weight once, however many chunks there are.
    """
    return head(hidden, targets, temperature, entropy)


def use(head: Any) -> nn.Linear:
    """Let a linear layer without bias answer ``token_logprobs`` too; returns the same layer, which still gives logits.

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
    ) -> Any:
        if targets is None:
            return functional.linear(hidden, self.weight)
        return _Logprobs.apply(hidden, self.weight, targets, temperature, with_entropy)

    head.forward = MethodType(forward, head)
    return head
