"""Micro-batches for the learner: a thread prepares the next one while the device computes.

Images are read, decoded and cut into patches there, as bytes (``Family.prepare``), and normalised on the device. On a
GPU all tensors of a micro-batch come from pinned memory, so the host does not wait for the copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vtcli.engines.inputs import PackedBatch, collate_packed, moved, pinned
from vtcli.engines.learner.packing import segments
from vtcli.errors import InputError
from vtcli.families.family import Batch, Family
from vtcli.protocols import View
from vtcli.schema import ImageRef, TrainRow

S = TypeVar("S")
T = TypeVar("T")

PREPARED_BYTES = 1_000_000_000
"""Prepared images that a rank keeps: 1000 of a megapixel take three times as much. A step's forward passes before and
after the first update, and those of later mini-batches, read the same images."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows to be learnt from, packed, with what the loss needs for each of their N trained tokens."""

    packed: PackedBatch
    row: Tensor  # (N,): the token's row, numbered from 0 without gaps
    weight: Tensor  # (N,)
    sampled: Tensor | None = None  # (N,) log-probabilities of the policy; None for rows to imitate
    advantage: Tensor | None = None  # (N,)
    anchor: Tensor | None = None  # (N,) log-probabilities of the learner at rollout


class Feed:
    """Prepares batches for one device."""

    def __init__(self, family: Family, view: View, device: Any, temperature: float = 1.0) -> None:
        self._family, self._device, self._temperature = family, torch.device(device), temperature
        self._images = PreparedImages(family, view)

    def forward(self, chunks: Sequence[Sequence[TrainRow]]) -> Iterator[PackedBatch]:
        """Each chunk of rows, in order, on the device."""
        return self._ahead(self._packed, chunks)

    def training(self, chunks: Sequence[Sequence[TrainRow]], weights: Mapping[str, float]) -> Iterator[MicroBatch]:
        """Each chunk of rows with the weights of rows in the loss; rows without one weigh nothing.

        Raises:
            InputError: values of a row that are not aligned with its tokens, placeholders without images.
        """
        return self._ahead(partial(self._micro, weights), chunks)

    def _ahead(self, prepare: Callable[[S], T], chunks: Sequence[S]) -> Iterator[T]:
        on_gpu = self._device.type == "cuda"
        work = (lambda chunk: pinned(prepare(chunk))) if on_gpu else prepare
        start = partial(torch.cuda.set_device, self._device) if on_gpu else None  # pins memory for this device
        for batch in ahead(work, chunks, start):
            yield moved(batch, self._device)

    def _packed(self, chunk: Sequence[TrainRow]) -> PackedBatch:
        return collate_packed(
            segments(chunk, self._family),
            self._family,
            "cpu",
            one_call=self._device.type == "cuda",
            prepared=self._images,
            temperature=self._temperature,
        )

    def _micro(self, weights: Mapping[str, float], chunk: Sequence[TrainRow]) -> MicroBatch:
        packed = self._packed(chunk)
        rows = packed.rows
        counts = [sum(row.mask) for row in rows]
        filled = [n for n in counts if n]
        row = torch.from_numpy(np.repeat(np.arange(len(filled)), filled))
        weight = np.asarray([weights.get(row.id, 0.0) for row in rows], np.float32)
        batch = partial(MicroBatch, packed, row, torch.from_numpy(np.repeat(weight, counts)))
        # The first row decides: a micro-batch holds either demonstrations or rollouts.
        if rows[0].logprobs is None:
            return batch()
        anchor = None if rows[0].anchor is None else _masked(rows, "anchor")
        return batch(_masked(rows, "logprobs"), _masked(rows, "advantages"), anchor)


class PreparedImages:
    """Images as their family prepares them. The latest stay, up to ``limit`` bytes. For one thread at a time."""

    def __init__(self, family: Family, view: View, limit: int = PREPARED_BYTES) -> None:
        self._family, self._view, self._room = family, view, limit
        self._kept: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()

    def __call__(self, ref: ImageRef) -> npt.NDArray[Any]:
        if (kept := self._kept.get(ref.view)) is not None:
            self._kept.move_to_end(ref.view)
            return kept
        made = self._kept[ref.view] = self._family.prepare(self._view(ref))
        self._room -= made.nbytes
        # The image just made stays, however large: the caller is about to use it.
        while self._room < 0 and len(self._kept) > 1:
            self._room += self._kept.popitem(last=False)[1].nbytes
        return made


def ahead(prepare: Callable[[S], T], items: Sequence[S], start: Callable[[], None] | None = None) -> Iterator[T]:
    """``prepare`` of each item, in order. A thread, which begins with ``start``, prepares the next one while the caller
    uses this one. It never prepares more than one ahead."""
    if not items:
        return
    with ThreadPoolExecutor(1, "next batch", start) as thread:
        coming = thread.submit(prepare, items[0])
        for item in items[1:]:
            now, coming = coming.result(), thread.submit(prepare, item)
            yield now
        yield coming.result()


def _masked(rows: Sequence[TrainRow], name: Literal["logprobs", "advantages", "anchor"]) -> Tensor:
    """One value for each trained token (N,), row by row."""
    out: list[npt.NDArray[np.float32]] = []
    for row in rows:
        values = getattr(row, name)
        if values is None or len(values) != len(row.mask):
            raise InputError(f"row {row.id} has no {name} aligned with its {len(row.mask)} tokens")
        out.append(np.asarray(values, np.float32)[np.asarray(row.mask, np.bool_)])
    return torch.from_numpy(np.concatenate(out))


LIMIT_BYTES = 2 * 2**30
"""Features that stay on the device: 200 images of a megapixel of the 7B model in bf16."""


class FrozenFeatures:
    """Features (tokens, hidden) of a vision tower that is not trained, by view: the latest used, up to ``limit`` bytes.

    The old log-probabilities, the reference model and later mini-batches of an update pass the tower by. Nothing
    outlives an update: a resumed run has no features of earlier steps, and matrix products of another batch may round
    in another way.
    """

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
