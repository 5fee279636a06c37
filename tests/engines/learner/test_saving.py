"""Checkpoints beside the training: what was copied is what is written, one at a time, and errors come out."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict

import pytest
import torch
from cases import each_case
from tiny_learner import copy, learner, rl_rows, same, two_ranks

from vtcli.config.bounds import OutOfBounds
from vtcli.engines.learner.saving import Saver, to_host
from vtcli.errors import ConfigError, InputError
from vtcli.store.checkpoints import Checkpoints, Interval, checkpoint_interval


class Slow:
    """A learner whose files are written when told; ``state`` goes on changing."""

    rank, world = 0, 1

    def __init__(self):
        self.state, self.go, self.error = 0, threading.Event(), None

    def snapshot(self, folder):
        state = self.state

        def write():
            assert self.go.wait(20)
            if self.error:
                raise self.error
            (folder / "state").write_text(str(state))

        return write


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path):
    slow, log = Slow(), tmp_path / "metrics.jsonl"
    points = Checkpoints(tmp_path / "c", [log])
    saver = Saver(slow, points)
    slow.state = 7
    log.write_text("one line\n")
    saver.save(1, 0.5)  # comes back at once: nothing may be written yet
    slow.state = 8
    log.write_text("one line\nanother\n")
    saver.check()
    assert points.latest() is None
    slow.go.set()
    saver.finish()
    found = points.resume()
    assert found is not None and found[0] == 1
    assert (found[1] / "state").read_text() == "7"
    assert json.loads((found[1] / "done.json").read_text())["value"] == 0.5
    assert log.read_text() == "one line\n"  # its size when the state was copied


def test_one_checkpoint_at_a_time_is_written(tmp_path):
    slow, points = Slow(), Checkpoints(tmp_path / "c", [])
    saver = Saver(slow, points)
    saver.save(1)
    threading.Timer(0.3, slow.go.set).start()
    saver.save(2)
    assert points.latest() is not None, "the first is whole before the second is begun"
    saver.finish()
    found = points.latest()
    assert found is not None and found[0] == 2


@each_case("asked", ["check", "finish", "save"])
def test_what_the_thread_meets_comes_out_in_the_next_step(tmp_path, asked):
    slow, points = Slow(), Checkpoints(tmp_path / "c", [])
    saver = Saver(slow, points)
    slow.go.set()
    saver.save(1)
    saver.finish()
    slow.error = InputError("Cannot write /a/file: the disk is full")
    saver.save(2)
    saver._thread.join()
    with pytest.raises(InputError, match="the disk is full"):
        saver.save(3) if asked == "save" else getattr(saver, asked)()
    found = points.latest()
    assert found is not None and found[0] == 1, "the one before is whole"


def test_a_marker_that_the_disk_refuses_ends_the_run_of_its_rank(tmp_path, monkeypatch):
    slow, full = Slow(), InputError("the disk is full")
    slow.rank = 1

    def refuse(path, data):
        raise full

    monkeypatch.setattr("vtcli.store.disk.write_atomic", refuse)
    saver = Saver(slow, Checkpoints(tmp_path / "c", []))
    (tmp_path / "c" / "draft").mkdir(parents=True)
    slow.go.set()
    saver.save(1)
    with pytest.raises(InputError, match="the disk is full"):
        saver.finish()


def test_a_run_that_fails_keeps_the_checkpoint_under_way(tmp_path):
    """The process waits for the thread: half an hour of work is in it."""
    saver = Saver(Slow(), Checkpoints(tmp_path / "c", []))
    saver.save(1)
    assert not saver._thread.daemon
    saver._learner.go.set()
    saver.finish()


def test_by_time_a_checkpoint_is_due_by_the_clock_and_after_the_one_before(tmp_path):
    now, slow = [0.0], Slow()
    saver = Saver(slow, Checkpoints(tmp_path / "c", []), Interval.read("30min"), clock=lambda: now[0])
    now[0] = 1799.0
    assert not saver.due(1)
    now[0] = 1800.0
    assert saver.due(2)
    saver.save(2)
    now[0] = 3700.0
    assert not saver.due(3), "one is being written"
    slow.go.set()
    saver._thread.join()
    assert saver.due(4)


def test_by_steps_a_checkpoint_is_due_every_so_many(tmp_path):
    saver = Saver(Slow(), Checkpoints(tmp_path / "c", []), Interval.read(5))
    assert [step for step in range(1, 12) if saver.due(step)] == [5, 10]


def test_intervals_are_steps_or_times():
    assert Interval.read(10) == Interval.read("10") == Interval(steps=10)
    assert [Interval.read(text).seconds for text in ("90s", "30min", "1.5h", "2 h")] == [90, 1800, 5400, 7200]
    for wrong in (0, -1, "0min", "soon", "30 parsecs", "1.5", "", True):
        with pytest.raises(OutOfBounds, match='steps, say 10, or a time, say "30min"'):
            Interval.read(wrong)
    with pytest.raises(ConfigError, match="give steps"):
        checkpoint_interval("30min", "reward")
    assert checkpoint_interval(3, "reward").steps == 3


def test_copies_are_of_values_and_keep_the_form():
    base = torch.arange(6.0)
    value = {"a": base[2:4], "b": [(base, 1)], "c": OrderedDict(x=torch.Size([2, 3])), "d": {"set"}}
    found = to_host(value)
    base.add_(100)
    assert found["a"].tolist() == [2, 3]
    assert found["a"].untyped_storage().nbytes() == 8, "a view is copied alone"
    assert found["b"][0][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert (type(found["c"]), found["c"]["x"], found["d"]) == (OrderedDict, torch.Size([2, 3]), {"set"})


@each_case("stage", [0, 1, 2, 3])
def test_a_step_after_the_copy_changes_nothing_in_the_checkpoint(tmp_path, stage):
    trained = learner(zero_stage=stage, dtype="bfloat16" if stage == 2 else "float32")
    trained.step(rl_rows())
    before, folder = copy(trained.weights()), tmp_path / "state"
    folder.mkdir()
    write = trained.snapshot(folder)
    assert not list(folder.rglob("*.pt")), "nothing is written yet"
    expected = trained.step(rl_rows())
    write()
    resumed = learner(zero_stage=stage, dtype="bfloat16" if stage == 2 else "float32")
    resumed.load_checkpoint(folder)
    same(resumed.weights(), before, 0)
    assert resumed.step(rl_rows()) == expected


FAILING = """
from vtcli.engines.learner.saving import Saver
from vtcli.errors import VtcliError
from vtcli.store.checkpoints import Checkpoints
points = Checkpoints(here / "checkpoints", [])
trained = t.learner(zero_stage=2)
saver = Saver(trained, points)
saver.save(1)
saver.finish()
out["first"] = points.latest()[0]
if rank == 1:
    def full(*_):
        raise OSError(28, "No space left on device")
    torch.save = full
saver.save(2)
torch_save = torch.save
try:
    saver.finish()
except VtcliError as error:
    out["error"] = str(error)
out["left"] = points.latest()[0]
torch.save = __import__("torch.serialization").serialization.save
"""


@pytest.mark.slow
def test_a_rank_that_cannot_write_fails_the_checkpoint_on_all(tmp_path):
    found = two_ranks(tmp_path, FAILING)
    assert [(out["first"], out["left"]) for out in found] == [(1, 1), (1, 1)]
    assert "The disk is full" in found[1]["error"]
    assert "rank 1: " in found[0]["error"] and "The disk is full" in found[0]["error"]
