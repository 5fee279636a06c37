"""``sft.max_tokens``: rows beyond it are left out or refused before the first step, the same in every rank."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model

from stages import sft
from stages.sft import Config, First
from vtcli.algo.optim import Backend, Optim
from vtcli.errors import ConfigError, InputError
from vtcli.families.messages import DemoRows
from vtcli.protocols import ALONE, Ranks
from vtcli.store import records
from vtcli.store.images import ImageStore, encode_png
from vtcli.store.records import Demo, DemoSet


def config(**keys: Any) -> Config:
    kept: dict[str, Any] = {"every": 200, "beside": True, "keep": 2, "best": None, "best_mode": "max"}
    checkpoints = {f"checkpoint_{key}": value for key, value in kept.items()}
    fixed: dict[str, Any] = {"data": "demos:v1", "model": "m", "epochs": 2, "rows_per_step": 3, "rows": None}
    return Config(**fixed, optim=Optim(), first=First(), **checkpoints, **keys)


@pytest.fixture
def rows(tmp_path: Path) -> DemoRows:
    """Five rows: words and pixels make them longer and longer, but for the last, which has the first's length."""

    def demo(number: int, words: int, side: int) -> tuple[Demo, list[bytes]]:
        asked = {"role": "user", "content": "<image>How many?"}
        said = {"role": "assistant", "content": "<answer>" + "2 " * words + "</answer>"}
        return Demo(f"d{number}", (asked, said), ()), [encode_png(np.full((side, side, 3), number, np.uint8))]

    sizes = [(1, 56), (40, 56), (1, 280), (60, 280), (1, 56)]
    records.write_demos(tmp_path / "train.parquet", (demo(n, *size) for n, size in enumerate(sizes)))
    family = tiny_model.family()
    store = ImageStore(tmp_path / "images", family.sizing(sft.ImageLimits()))
    return DemoRows(DemoSet(tmp_path, "train", store), family.chat)


def test_lengths_are_those_of_the_rows_that_are_learnt_and_no_pixel_is_stored(rows: DemoRows, tmp_path: Path) -> None:
    lengths = rows.lengths()
    assert not (tmp_path / "images").exists()
    assert lengths == [len(rows[i].token_ids) for i in range(5)]
    assert lengths[0] == lengths[4] < lengths[2] < lengths[3]
    barrier, values = threading.Barrier(3, timeout=60), dict[int, Any]()

    def gather(rank: int, value: Any) -> list[Any]:
        values[rank] = value
        barrier.wait()
        return [values[r] for r in range(3)]

    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(rows.lengths, Ranks(rank, 3, partial(gather, rank))) for rank in range(3)]
        assert [future.result(60) for future in found] == [lengths] * 3


def test_longer_rows_are_left_out_counted_and_named(rows: DemoRows, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = rows.lengths()
    kept, facts = sft._within(config(max_tokens=lengths[0]), rows, "train", ALONE)
    assert (kept.ids, facts) == (("d0", "d4"), {"too_long": 3})
    assert [kept[i].id for i in range(2)] == ["d0", "d4"] and len(kept) == 2
    said = capsys.readouterr().err
    assert (
        f"left out: 3 of 5 rows of demos:v1 (train) have more than {lengths[0]} tokens, most d3 ({lengths[3]})" in said
    )
    assert sft._within(config(), rows, "train", ALONE) == (rows, {})
    whole, none = sft._within(config(max_tokens=max(lengths)), rows, "train", ALONE)
    assert (whole.ids, none) == (rows.ids, {"too_long": 0}) and not capsys.readouterr().err


def test_longer_rows_are_an_error_by_choice_and_so_is_no_row_at_all(rows: DemoRows) -> None:
    with pytest.raises(InputError, match=r"\b1 of 5 .*\bd3 \(\d+\).*sft\.max_tokens.*sft\.too_long"):
        sft._within(config(max_tokens=max(rows.lengths()) - 1, too_long="error"), rows, "train", ALONE)
    with pytest.raises(InputError, match="none is left"):
        sft._within(config(max_tokens=1), rows, "train", ALONE)
    with pytest.raises(ConfigError, match=r"\bmax_tokens: .*\b1\b"):
        config(max_tokens=0)


def test_a_row_that_no_micro_batch_takes_is_refused_before_the_first_step(rows: DemoRows) -> None:
    """The key alone measures rows that are learnt: those are told at their step, on all ranks."""
    longest = max(rows.lengths())
    little, enough = Backend(batch_tokens=longest - 1), Backend(batch_tokens=longest)
    said = rf"row d3 of demos:v1 \(validation\) has {longest} tokens, more than sft\.backend\.batch_tokens="
    with pytest.raises(InputError, match=said):
        sft._within(config(backend=little), rows, "validation", ALONE)
    with pytest.raises(InputError, match=rf"\(train\) .*sft\.max_tokens={longest - 1}\."):
        sft._within(config(backend=little, max_tokens=longest), rows, "train", ALONE)
    assert sft._within(config(backend=little), rows, "train", ALONE) == (rows, {})
    assert sft._within(config(backend=enough), rows, "validation", ALONE) == (rows, {})
    assert len(sft._within(config(backend=little, max_tokens=longest - 1), rows, "validation", ALONE)[0]) == 4
