"""Rows shared out over ranks: the same update, in fewer micro-batches; an error of one rank is one of all."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from tiny_learner import copy, learner, rl_rows, same, two_ranks

from vtcli.engines.learner import sharing
from vtcli.engines.learner.sharing import share_out
from vtcli.schema import TrainRow


def grouped() -> list:
    """Four prompts with an image and rows of several lengths each; the last row has no advantage."""
    said = ["x", "Look at this.", "Look at this. Then that.", "a longer answer, of more words than the others have"]
    return [
        tiny_model.row(f"{nth}-{turn}", f"Where is the tag{'?' * (nth + 1)}", [text, "7"][: 1 + turn % 2], (nth,))
        for nth in range(4)
        for turn, text in enumerate(said)
    ]


def test_one_rank_keeps_its_rows() -> None:
    rows = [tiny_model.rows(), []]
    assert share_out(rows, lambda _: True, 1, tiny_model.family()) is rows  # what is too long is told by the step


def as_ranks(monkeypatch: pytest.MonkeyPatch, held: list[list[TrainRow]]) -> list[Any]:
    """``share_out`` of every rank's rows, one rank a thread; what they tell each other goes through a list."""
    world, barrier, slots, me = len(held), threading.Barrier(len(held)), dict[int, Any](), threading.local()

    def gather(value: Any, what: str) -> list[Any]:
        barrier.wait(20)
        slots[me.rank] = value
        barrier.wait(20)
        return [slots[rank] for rank in range(world)]

    def run(rank: int) -> Any:
        me.rank = rank
        return share_out([held[rank]], lambda _: True, 4000, tiny_model.family())[0]

    monkeypatch.setattr(sharing, "init_distributed", lambda: (me.rank, world))
    monkeypatch.setattr(sharing, "gather", gather)
    monkeypatch.setattr(sharing, "exchange", lambda sent, what: [told[me.rank] for told in gather(sent, what)])
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def test_demonstrations_of_a_heavy_tail_are_shared_out_by_computed_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [min(3000, round(60 * random.Random(seed).paretovariate(1.1))) for seed in range(256)]
    rows = [
        TrainRow(f"{nth:03}", (nth % 50 + 10, *range(100, 100 + n)), (0, *(1,) * n), ())
        for nth, n in enumerate(lengths)
    ]
    held = [rows[rank::8] for rank in range(8)]  # as stages/sft.py reads them

    def spread(found: list[list[TrainRow]]) -> float:
        tokens = [sum(len(row.token_ids) for row in part) for part in found]
        return max(tokens) / (sum(tokens) / len(tokens))

    found = as_ranks(monkeypatch, held)
    assert spread(held) > 1.2
    assert spread(found) < 1.1
    assert sorted(row.id for part in found for row in part) == [row.id for row in rows]
    assert as_ranks(monkeypatch, held) == found


SHARES = """
from dataclasses import replace
from vtcli.algo.losses import LossConfig
from vtcli.engines.learner import deepspeed, distributed
from vtcli.errors import InputError
from test_sharing import grouped

rows = t.rl_rows(grouped())
rows[-1] = replace(rows[-1], advantages=tuple(0.0 for _ in rows[-1].mask))
mine = rows[-2:] if rank else rows[:-2]
share_out = deepspeed.share_out
for stage, parts in ((0, 1), (3, 2)):
    cut = len(mine) // parts
    given = [mine[i * cut : (i + 1) * cut] for i in range(parts)]
    for name, function in (("as they are", lambda found, *_: found), ("shared out", share_out)):
        deepspeed.share_out = function
        trained, taken = t.learner(batch_tokens=150, zero_stage=stage), []
        step = trained.step
        trained.step = lambda rows, loss: taken.append([r.id for r in rows]) or step(rows, loss)
        metrics = [trained.update(given, LossConfig()) for _ in range(2)]
        out[stage, name] = metrics, t.copy(trained.weights()), trained.engine.micro_steps, taken

long = replace(rows[0], id="long", token_ids=rows[0].token_ids * 9, mask=rows[0].mask * 9, advantages=(1.0,) * 999)
try:
    trained.update([mine, [long] if rank else mine], LossConfig())
except InputError as error:
    out["error"] = str(error)
out["after"] = trained.update([mine], LossConfig())["updated"]
out["sent"] = distributed.exchange(["" if to else [rank] * 10**5 * (rank + 1) for to in range(2)], "a test")
"""


@pytest.mark.slow
def test_two_ranks_share_rows_out_and_learn_the_same(tmp_path) -> None:
    """Rank 0 holds 14 of 16 rows. Only the order of sums differs, so losses and weights are equal to 1e-5."""
    path = f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    found = two_ranks(tmp_path, path + SHARES)
    rows = {row.id: row for row in grouped()}
    for stage, parts in ((0, 1), (3, 2)):
        for out in found:
            before, after = out[stage, "as they are"], out[stage, "shared out"]
            for one, two in zip(before[0], after[0], strict=True):
                assert two == pytest.approx(one, rel=1e-4, abs=1e-4)
                assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
            same(after[1], before[1], 1e-5)
            assert after[2] <= 0.7 * before[2]  # micro-batches of the rank that has the most
        taken = [out[stage, "shared out"][3] for out in found]
        for nth in range(2 * parts):
            assert sorted(taken[0][nth] + taken[1][nth]) == sorted(
                name for out in found for name in out[stage, "as they are"][3][nth]
            )
        assert taken[0][:parts] == taken[0][parts : 2 * parts]  # the shares follow from the rows
        if parts == 1:
            tokens = [sum(len(rows[name].token_ids) for name in share[0]) for share in taken]
            assert max(tokens) < 0.7 * sum(tokens)
            prompts = [{name[0] for name in share[0]} for share in taken]
            assert len(prompts[0] & prompts[1]) <= 1  # but for one, rows of a prompt are together
        assert "3-3" in taken[1][parts - 1]  # has no gradient, so it stays
    assert found[0]["error"] == found[1]["error"]
    assert "row long has" in found[0]["error"] and "batch_tokens" in found[0]["error"]
    assert [out["after"] for out in found] == [1.0, 1.0]
    assert [out["sent"] for out in found] == [[[0] * 10**5, [1] * 2 * 10**5], ["", ""]]


@pytest.mark.slow
def test_a_step_of_all_rows_on_one_rank_is_the_same(tmp_path) -> None:
    """Against one process: the weights of shares that were exchanged are those of the whole batch."""
    body = """
from vtcli.algo.losses import LossConfig
trained = t.learner(batch_tokens=150)
rows = t.rl_rows()
out["metrics"] = trained.update([[] if rank else rows], LossConfig())
out["weights"] = t.copy(trained.weights())
"""
    from vtcli.algo.losses import LossConfig

    found = two_ranks(tmp_path, body)
    alone = learner(batch_tokens=150)
    expected = alone.update([rl_rows()], LossConfig())
    assert found[0]["metrics"] == pytest.approx(expected, abs=1e-4)
    same(found[0]["weights"], copy(alone.weights()), 1e-5)
    assert all(torch.equal(value, found[1]["weights"][name]) for name, value in found[0]["weights"].items())
