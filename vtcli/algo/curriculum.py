"""The phase and the samples of a step. Both are pure functions of the step, so resume needs no cursor."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from vtcli.errors import ConfigError


def require_phases(names: Sequence[str]) -> None:
    """Raises ``ConfigError`` for a curriculum without a phase, and for phases with one folder for their models."""
    if not names:
        raise ConfigError("rl.phases is empty: expected at least one phase. Choose a recipe: +recipe=toolsrl")
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name) or names.count(name) > 1:
            raise ConfigError(
                f"rl.phases: the name {name!r} {'is given twice' if names.count(name) > 1 else 'is not a name'}: each "
                "phase keeps its model under its own name, of letters, digits and _ . -"
            )


def locate(lengths: Sequence[int], step: int) -> tuple[int, int]:
    """Returns (phase, step within the phase) of a 0-based step over phases of ``lengths`` steps.

    Example: lengths (3, 2): step 2 is (0, 2), step 3 is (1, 0).

    Raises:
        ValueError: the step is beyond the last phase.
    """
    for phase, length in enumerate(lengths):
        if step < length:
            return phase, step
        step -= length
    raise ValueError(f"step lies {step + 1} beyond the last of {len(lengths)} phases")


def round_indices(size: int, per_step: int, step: int, number: int, seed: int) -> list[int]:
    """Returns the indices of one round of a step. First rounds go through the epochs as ``batch_indices``. Further
    rounds, which a step may not need, have a separate order, so that every epoch still asks every question once. They
    first ask questions that the step has not asked.

    Args:
        number: of the round, from 0.
        seed: of the order, below 2**32.

    Raises:
        ConfigError: the set or the batch is empty.
    """
    first = batch_indices(size, per_step, step, seed)
    if number == 0:
        return first
    order: list[int] = (
        np.random.default_rng([seed + 2**32, step]).permutation(size).tolist()
    )  # a seed that no first round has
    asked = set(first)
    order = sorted(order, key=asked.__contains__)  # stable: indices that were not asked come first
    return [order[place % size] for place in range((number - 1) * per_step, number * per_step)]


def batch_indices(size: int, per_step: int, step: int, seed: int) -> list[int]:
    """Returns the indices of one step's samples. Every epoch has its own permutation, and a batch may cross its end.

    Raises:
        ConfigError: the set or the batch is empty.
    """
    if size < 1 or per_step < 1:
        raise ConfigError(f"cannot draw {per_step} samples a step from {size}: both must be at least 1")
    out: list[int] = []
    orders: dict[int, list[int]] = {}
    for position in range(step * per_step, (step + 1) * per_step):
        epoch, offset = divmod(position, size)
        if epoch not in orders:
            orders[epoch] = np.random.default_rng([seed, epoch]).permutation(size).tolist()
        out.append(orders[epoch][offset])
    return out
