"""Features of images from a vision tower that is not trained, computed once in an update.

A view is known by the hash of its content. The old log-probabilities, the reference model and later mini-batches then
pass the tower by. Nothing outlives an update: a resumed run has no features of earlier steps, and matrix products of
another batch may round in another way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vtcli.families.family import Batch, Family
from vtcli.protocols import View

LIMIT_BYTES = 2 * 2**30
"""Features that stay on the device: 200 images of a megapixel of the 7B model in bf16."""


class FrozenFeatures:
    """Features (tokens, hidden) by view; the latest used stay, up to ``limit`` bytes."""

    def __init__(self, family: Family, view: View, limit: int = LIMIT_BYTES) -> None:
        self._family, self._view = family, view
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[str, Tensor] = OrderedDict()
        self._open = False

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keeps features until the end; outside of it, none are."""
        self._open = True
        try:
            yield
        finally:
            self._open, self._bytes = False, 0
            self._kept.clear()

    def knows(self, batch: Batch) -> bool:
        """Returns True if the batch passes the vision tower by."""
        return all(ref.view in self._kept for ref in batch.unique)

    @torch.no_grad()
    def __call__(self, model: Any, batch: Batch) -> Sequence[Tensor]:
        """Features of ``batch.unique``: all kept ones, or all computed together."""
        if self.knows(batch):
            for ref in batch.unique:
                self._kept.move_to_end(ref.view)
            return [self._kept[ref.view] for ref in batch.unique]
        found = self._family.features(model, batch, self._view)
        for ref, features in zip(batch.unique, found, strict=True):
            if self._open and ref.view not in self._kept:
                self._keep(ref.view, features.clone())  # a part of all images' features would hold them all
        return found

    def _keep(self, view: str, features: Tensor) -> None:
        self._kept[view] = features
        self._bytes += features.nbytes
        while self._bytes > self._limit:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes


def frozen(family: Family, model: Any) -> bool:
    """Returns True if no weight of the vision tower is trained."""
    return not any(p.requires_grad for module in family.vision(model) for p in module.parameters())


def same_tower(family: Family, model: Any, other: Any) -> bool:
    """Returns True if both models have the same vision tower, bit for bit."""
    pairs = zip(family.vision(model), family.vision(other), strict=True)
    towers = [(one.state_dict(), two.state_dict()) for one, two in pairs]
    return all(
        one.keys() == two.keys() and all(v.dtype == two[k].dtype and torch.equal(v, two[k]) for k, v in one.items())
        for one, two in towers
    )
