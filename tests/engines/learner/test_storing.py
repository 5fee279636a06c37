"""A full disk while weights are saved: one error, and what was there before is whole."""

import subprocess

import pytest
import tiny_model
from tiny_learner import copy, learner, same

from vtcli.engines.learner.saving import storing
from vtcli.errors import InputError
from vtcli.store.checkpoints import Checkpoints


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def small(tmp_path):
    """A file system with room for one checkpoint and a half; the learner, whose first checkpoint is there."""
    mount, trained = tmp_path / "small", learner()
    mount.mkdir()
    trained.save_checkpoint(tmp_path / "measured")
    room = f"size={int(size(tmp_path / 'measured') * 1.5)}"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", room, "none", str(mount)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a small file system needs root")
    yield mount, trained
    subprocess.run(["umount", str(mount)], check=True)


def test_a_disk_that_is_full_leaves_the_last_checkpoint_whole(small):
    mount, trained = small
    checkpoints = Checkpoints(mount / "checkpoints", [])
    checkpoints.save(1, trained.save_checkpoint)
    before = copy(trained.weights())
    trained.step(tiny_model.rows())
    with pytest.raises(InputError, match="disk is full"):
        checkpoints.save(2, trained.save_checkpoint)
    found = checkpoints.latest()
    assert found is not None and found[0] == 1
    resumed = learner()
    resumed.load_checkpoint(found[1])
    same(resumed.weights(), before, 0)


def test_a_model_that_does_not_fit_on_the_disk_is_one_error(small):
    mount, trained = small

    def fill():
        for nth in range(50):
            trained.export(tiny_model.folder(), mount / str(nth))

    with pytest.raises(InputError, match="disk is full"):
        fill()


def test_other_failures_keep_their_names(tmp_path):
    with pytest.raises(RuntimeError, match="shapes"), storing(tmp_path):
        raise RuntimeError("shapes differ")
