"""Which rows every SFT step takes: rows of one kind alone first, then all; pure in the step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stages.sft import Config, First, Schedule
from vtcli.algo.optim import Optim
from vtcli.errors import ConfigError


def ids(kinds: str) -> list[str]:
    names = {"p": "perceive", "t": "tool"}
    return [f"zoom-demo-train-{i}-{names[k]}" for i, k in enumerate(kinds)]


def config(rows: int | None = None, **first: float) -> Config:
    kept: dict[str, Any] = {"every": 200, "beside": True, "keep": 2, "best": None, "best_mode": "max"}
    checkpoints = {f"checkpoint_{key}": value for key, value in kept.items()}
    lessons = First(**first)  # type: ignore[arg-type]
    return Config(
        data="d", model="m", optim=Optim(), epochs=2, rows_per_step=3, rows=rows, first=lessons, **checkpoints
    )


def test_rows_of_the_first_kind_come_alone_and_then_every_row_in_every_epoch() -> None:
    names = ids("ptptpt" * 2)
    schedule = Schedule.of(names, config(epochs=2, rows_per_step=2))
    assert (schedule.alone_steps, schedule.steps) == (6, 6 + 8)
    alone = [names[i] for step in range(6) for i in schedule.batch(step)]
    assert set(Counter(alone).values()) == {2} and all(i.endswith("-perceive") for i in alone) and len(set(alone)) == 6
    mixed = Counter(i for step in range(6, 14) for i in schedule.batch(step))
    assert len(mixed) == 12 and set(mixed.values()) == {2}
    assert schedule.batch(9) == Schedule.of(names, schedule.config).batch(9)


def test_without_a_first_part_all_rows_are_mixed_from_the_start() -> None:
    schedule = Schedule.of(ids("tttttt"), config())
    assert schedule.steps == 4 and len({i for step in (0, 1) for i in schedule.batch(step)}) == 6


def test_few_rows_of_the_first_kind_take_one_step() -> None:
    assert Schedule.of(ids("pptt"), config(epochs=1, rows_per_step=32)).alone_steps == 1


def test_a_kind_that_no_row_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no row's id in d ends with -perceive"):
        Schedule.of(ids("ttt"), config(epochs=1))
    with pytest.raises(ConfigError, match=r"\bepochs: .*-1"):
        First(epochs=-1)


def test_fewer_rows_are_a_part_of_more_and_every_epoch_has_them_all() -> None:
    """CodeDance's figure 3: 5K, 10K, 20K and 34K demonstrations."""
    names = ids("ptptpt" * 4)
    some, more = (set(Schedule.of(names, config(rows=n)).used) for n in (6, 12))
    assert len(some) == 6 and len(more) == 12 and some < more < set(range(24))
    schedule = Schedule.of(names, config(rows=6, epochs=1, rows_per_step=2))
    alone = [i for i in schedule.used if names[i].endswith("-perceive")]
    assert sorted(schedule.alone) == alone and schedule.steps == schedule.alone_steps + 4  # 2 epochs of 6 rows by 3
    mixed = Counter(i for step in range(schedule.alone_steps, schedule.steps) for i in schedule.batch(step))
    assert mixed == Counter(2 * list(schedule.used))
    with pytest.raises(ConfigError, match=r"sft\.rows=25: d .*24"):
        Schedule.of(names, config(rows=25))
    with pytest.raises(ConfigError, match=r"\brows: .*\b0"):
        config(rows=0)
