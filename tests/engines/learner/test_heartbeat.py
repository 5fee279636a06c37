"""Ranks that are slow and ranks that die: by a clock and a store of our own, and with real processes over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forked
import pytest

from vtcli.engines.learner.distributed import Heart, RankWait
from vtcli.errors import EngineError


class Keys:
    """A store in memory; ``gone`` is one whose process has ended."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.gone = False

    def set(self, key: str, value: str, /) -> None:
        self._answer()
        self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        self._answer()
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        self._answer()
        return all(key in self.values for key in keys)

    def _answer(self) -> None:
        if self.gone:
            raise RuntimeError("connection refused")


class Wait:
    """Rank 0 of three, which waits for the others; time passes when told."""

    def __init__(self, **limits: float) -> None:
        self.keys, self.now = Keys(), 0.0
        self.hearts = [Heart(self.keys, rank, 3) for rank in range(3)]
        given: dict[str, Any] = {"period_s": 5.0, "silent_s": 120.0, "limit_s": 3600.0} | limits
        self.patience = RankWait(self.hearts[0], "the rollouts", [1, 2], clock=lambda: self.now, **given)

    def passes(self, seconds: float, *beating: int) -> None:
        for _ in range(int(seconds // 5)):
            self.now += 5
            for rank in beating:
                self.hearts[rank].beat()
            self.patience.check()


def test_a_rank_that_beats_is_waited_for_longer_than_a_silent_one() -> None:
    wait = Wait()
    wait.passes(1800, 1, 2)  # far beyond the limit for silence


def test_a_silent_rank_is_named_and_the_others_are_not() -> None:
    wait = Wait()
    wait.passes(600, 1, 2)
    wait.passes(110, 1)
    with pytest.raises(EngineError, match=r"^rank 2 gave no sign of life for 120 s while rank 0 waited for the roll"):
        wait.passes(20, 1)


def test_a_rank_that_only_paused_counts_from_its_last_beat() -> None:
    wait = Wait()
    for _ in range(5):
        wait.passes(100, 1)
        wait.passes(5, 1, 2)


def test_a_rank_that_beats_but_never_comes_is_named_by_the_long_limit() -> None:
    wait = Wait()
    for rank in (0, 1):
        wait.hearts[rank].begun = 4
    wait.hearts[2].begun = 3
    with pytest.raises(EngineError, match=r"^rank 2 did not come within 1 h, alive as it is"):
        wait.passes(3700, 1, 2)


def test_a_store_that_is_gone_is_silence_of_all() -> None:
    wait = Wait()
    wait.passes(10, 1, 2)
    wait.keys.gone = True
    with pytest.raises(EngineError, match="ranks 1, 2 gave no sign of life"):
        wait.passes(130)


def test_nobody_is_blamed_for_time_in_which_all_were_stopped() -> None:
    wait = Wait()
    wait.passes(20, 1, 2)
    wait.now += 86_400  # a suspended job
    wait.patience.check()
    wait.passes(100, 1, 2)


def test_a_rank_that_never_began_to_beat_is_silent() -> None:
    wait = Wait()
    del wait.keys.values["beat-1"]
    with pytest.raises(EngineError, match=r"^rank 1 gave no sign"):
        wait.passes(130, 2)


RANK = """
import os, sys, time
sys.path[:0] = PATHS
from datetime import timedelta
from vtcli.engines.learner import distributed
from vtcli.errors import EngineError
distributed.PERIOD_S, distributed.SILENT_S, distributed.LIMIT_S = 0.2, 2.0, 30.0
distributed.COLLECTIVE_TIMEOUT = timedelta(seconds=20)
rank, _ = distributed.init_distributed()
try:
BODY
except EngineError as error:
    print(f"rank {rank}: {error}", flush=True)
    os._exit(2)
os._exit(0)
"""


def ranks(here: Path, body: str, waited_for: int = 2) -> list[tuple[int | None, str]]:
    """Exit code and output of two ranks that run ``body``, started as by a launcher that ends nobody."""
    script = here / "rank.py"
    indented = "\n".join("    " + line for line in body.strip().splitlines())
    script.write_text(RANK.replace("PATHS", repr([str(Path(__file__).parents[3])])).replace("BODY", indented))
    return forked.two_ranks(script, [], here, waited_for=waited_for)


def test_a_slow_rank_is_waited_for_beyond_the_limit_for_silence(tmp_path: Path) -> None:
    body = """
if rank == 1:
    time.sleep(6)  # three times the limit for silence
found = distributed.gather({"rank": rank, "text": "x" * rank}, "numbers")
assert found == [{"rank": 0, "text": ""}, {"rank": 1, "text": "x"}], found
distributed.barrier()
"""
    assert [code for code, _ in ranks(tmp_path, body)] == [0, 0]


def test_a_rank_that_stops_is_named_soon(tmp_path: Path) -> None:
    body = """
import signal
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
distributed.gather(rank, "rollouts")
"""
    ((code, text),) = ranks(tmp_path, body, waited_for=1)
    assert code == 2, text
    assert "rank 0: rank 1 gave no sign of life for 2 s while rank 0 waited for rollouts" in text


@pytest.mark.slow
def test_a_rank_that_stops_in_the_circle_of_servers_is_named_soon(tmp_path: Path) -> None:
    body = """
import asyncio, signal
from vtcli.engines.learner.ranks import Circle
circle = Circle(600)
async def work():
    return rank
assert asyncio.run(circle.share(work())) == [0, 1]
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
asyncio.run(circle.share(None))
"""
    ((code, text),) = ranks(tmp_path, body, waited_for=1)
    assert code == 2, text
    assert "rank 1 gave no sign of life for 2 s while rank 0 waited for what the ranks do with vLLM servers" in text


@pytest.mark.slow
def test_a_rank_that_writes_its_part_of_a_checkpoint_is_waited_for_and_one_that_stops_is_named(tmp_path: Path) -> None:
    body = """
import signal
from pathlib import Path
from vtcli.engines.learner.saving import Saver
from vtcli.store.checkpoints import Checkpoints

class Learner:
    world = 2
    def __init__(self): self.rank, self.part = rank, lambda: time.sleep(6 * rank)  # three times the limit for silence
    def snapshot(self, folder): return self.part

learner = Learner()
saver = Saver(learner, Checkpoints(Path(HERE) / "points", [], 2))
saver.save(1)
saver.finish()
assert (Path(HERE) / "points").is_dir()
if rank == 1:
    learner.part = lambda: os.kill(os.getpid(), signal.SIGSTOP)
saver.save(2)
while True:
    saver.check()
    time.sleep(0.1)
""".replace("HERE", repr(str(tmp_path)))
    ((code, text),) = ranks(tmp_path, body, waited_for=1)
    assert code == 2, text
    assert "rank 0: rank 1 gave no sign of life for 2 s while rank 0 waited for its part of" in text


def test_a_rank_that_dies_ends_the_others(tmp_path: Path) -> None:
    body = """
if rank == 1:
    os._exit(9)
distributed.gather(rank, "rollouts")
"""
    (code, text), (other, _) = ranks(tmp_path, body)
    assert (code, other) == (2, 9), text
    assert "rank 0: a rank ended while rank 0 waited for rollouts" in text


def test_the_first_rank_is_waited_for_at_the_end(tmp_path: Path) -> None:
    """One that works on beyond the limit is waited for; one that stops is named."""
    body = """
alive = distributed.rank_alive(0, "the artifact")
if rank == 0:
    time.sleep(5)
    os._exit(7)  # its beats and the store end with it
began = time.monotonic()
while True:
    alive()
    time.sleep(0.1)
    assert time.monotonic() - began < 60
"""
    (_, _), (code, text) = ranks(tmp_path, body)
    assert code == 2, text
    assert "rank 1: rank 0 gave no sign of life for 2 s while rank 1 waited for the artifact" in text
    assert text.count("sendBytes failed") + text.count("recvValue failed") < 3  # torch prints a page for each
