"""What the learner is fed with: prepared one ahead in a thread, exact, and without a wait for the device."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_model
import torch
from cases import each_case
from tiny_learner import learner, rl_rows
from torch.utils._python_dispatch import TorchDispatchMode

from vtcli.algo.losses import LossConfig
from vtcli.engines.inputs import moved
from vtcli.engines.learner import deepspeed
from vtcli.engines.learner.feed import Feed, PreparedImages, ahead
from vtcli.errors import EngineError, InputError
from vtcli.families.qwen_vl.patches import OF_CLIP
from vtcli.families.qwen_vl.tower import normalised

FAMILY = tiny_model.family()


def test_bytes_normalised_on_the_device_are_the_processors_numbers_bit_for_bit() -> None:
    """All 256 values of all three colours, and a picture."""
    levels = np.arange(28 * 28).astype(np.uint8).reshape(28, 28, 1)
    every = np.concatenate([levels, levels[::-1], levels[:, ::-1]], axis=2)
    random = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)
    assert all(len(np.unique(every[..., colour])) == 256 for colour in range(3))
    for pixels in (every, random):
        found = normalised(torch.from_numpy(OF_CLIP.tiles(pixels)), OF_CLIP)
        assert torch.equal(found, torch.from_numpy(OF_CLIP.normalised(pixels)))
        assert OF_CLIP.tiles(pixels).dtype == np.uint8
        assert OF_CLIP.tiles(pixels).nbytes == pixels.nbytes


def test_the_next_item_is_prepared_while_this_one_is_used_and_never_two_ahead() -> None:
    begun: list[int] = []
    gate = {i: threading.Event() for i in range(4)}

    def prepare(i: int) -> tuple[int, str]:
        begun.append(i)
        gate[i].set()
        return i, threading.current_thread().name

    seen = []
    for i, name in ahead(prepare, range(4)):
        assert name != threading.current_thread().name
        if i < 3:
            assert gate[i + 1].wait(30)  # without the thread it would not come
        assert begun == list(range(min(i + 2, 4)))
        seen.append(i)
    assert seen == [0, 1, 2, 3]
    assert list(ahead(prepare, [])) == []


def test_an_error_of_the_thread_comes_with_its_item_and_an_abandoned_feed_ends_its_thread() -> None:
    def prepare(i: int) -> int:
        if i == 2:
            raise InputError("no picture")
        return i

    found: list[int] = []
    with pytest.raises(InputError, match="no picture"):
        found.extend(ahead(prepare, range(4)))
    assert found == [0, 1]
    items = ahead(prepare, range(4))
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("next batch")]


def test_images_are_read_once_for_all_passes_within_the_bound() -> None:
    read: list[str] = []
    refs = [tiny_model.image(i) for i in range(3)]

    def view(ref: Any) -> Any:
        read.append(ref.view)
        return tiny_model.store().view(ref)

    images = PreparedImages(FAMILY, view)
    for _ in range(2):
        for ref in refs:
            np.testing.assert_array_equal(images(ref), OF_CLIP.tiles(tiny_model.store().view(ref)))
    assert Counter(read).most_common(1)[0][1] == 1
    small = PreparedImages(FAMILY, view, limit=OF_CLIP.tiles(tiny_model.store().view(refs[0])).nbytes)
    read.clear()
    for ref in (refs[0], refs[1], refs[0]):
        small(ref)
    assert len(read) == 3

    read.clear()
    feed = Feed(FAMILY, view, "cpu")
    rows = tiny_model.rows()
    for _ in range(2):  # before the update, and in it
        assert [batch.rows for batch in feed.forward([rows[:2], rows[2:]])]
    assert set(Counter(read).values()) == {1}


def test_what_goes_to_the_device_is_all_of_a_batch_and_pixels_are_bytes() -> None:
    rows = [replace(row, scales=(0.5,) * len(row.mask)) for row in rl_rows()]
    (batch,) = Feed(FAMILY, tiny_model.store().view, "cpu").training([rows], {})
    assert batch.packed.pixels is not None
    assert batch.packed.pixels.dtype == torch.uint8
    away = moved(batch, torch.device("meta"))
    packed = away.packed
    tensors = [away.row, away.weight, away.sampled, away.advantage, packed.ids, packed.positions, packed.pixels]
    tensors += [packed.before, packed.targets, packed.scales, packed.layout[0].places]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert packed.rows == batch.packed.rows


class Waits(TorchDispatchMode):
    """Counts operations for which the host must wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"):
            self.note(name)
        return function(*args, **(kwargs or {}))

    def note(self, name: str) -> None:
        files = []
        frame = sys._getframe(1)
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        if not any(file.endswith(("families/varlen.py", "feed.py")) for file in files):
            self.found[name] += 1  # varlen: the CPU's stand-in for the kernel; feed: tensors of the host


@contextmanager
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """``tolist`` and its like of a CPU tensor do not pass the dispatcher."""
    with Waits() as counted, monkeypatch.context() as patch:
        for name in ("tolist", "numpy", "cpu"):
            method = getattr(torch.Tensor, name)

            def note(self: Any, *args: Any, method: Any = method, name: str = name, **kwargs: Any) -> Any:
                counted.note(name)
                return method(self, *args, **kwargs)

            patch.setattr(torch.Tensor, name, note)
        yield counted


@each_case(("kind", "stage"), [("imitate", 0), ("token", 2), ("sequence", 0), ("anchored", 2)])
def test_a_micro_batch_more_costs_at_most_one_wait_and_no_message(
    monkeypatch: pytest.MonkeyPatch, kind: str, stage: int
) -> None:
    rows = tiny_model.rows() if kind == "imitate" else rl_rows()
    if kind == "anchored":
        rows = [replace(row, anchor=row.logprobs) for row in rows]
    ratio = "sequence" if kind == "sequence" else "token"
    loss = LossConfig(ratio=ratio, importance=ratio)
    messages: list[int] = []
    gather = deepspeed.gather
    monkeypatch.setattr(deepspeed, "gather", lambda *given: messages.append(1) or gather(*given))
    found = {}
    for count in (1, 4):
        trained = learner(zero_stage=stage, batch_tokens=4000 if count == 1 else max(len(r.token_ids) for r in rows))
        trained.step(rows, loss)
        messages.clear()
        with waits(monkeypatch) as counted:
            trained.step(rows, loss)
        micro = len(deepspeed.batches(rows, trained.backend.batch_tokens, FAMILY))
        found[micro] = counted.found.total(), len(messages)
    (few, once), (many, again) = found[min(found)], found[max(found)]
    assert max(found) - min(found) >= 2
    assert many - few <= max(found) - min(found), (found, counted.found)
    assert once == again == 2


@pytest.mark.parametrize(
    ("stage", "place"), [(0, -1), (1, -1), (2, 0), pytest.param(3, -1, marks=pytest.mark.wide)]
)  # ZeRO 3 with such a last micro-batch: test_deepspeed.py
def test_a_loss_that_is_not_finite_in_any_micro_batch_leaves_nothing_behind(stage: int, place: int) -> None:
    rows = sorted(rl_rows(), key=lambda row: len(row.token_ids))
    tokens = max(len(row.token_ids) for row in rows)
    trained, fresh = (learner(zero_stage=stage, batch_tokens=tokens) for _ in range(2))
    bad = list(rows)
    bad[place] = replace(bad[place], advantages=tuple(float("nan") * m for m in bad[place].mask))
    with pytest.raises(EngineError, match="the loss of step 0 is nan on rank 0: no update was made"):
        trained.step(bad)
    assert trained.step(rows) == fresh.step(rows)
    for name, value in fresh.weights().items():
        assert torch.equal(trained.weights()[name], value), name
