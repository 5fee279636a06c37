"""What we start does not outlive us, however we end; and weights go to other processes in buckets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from vtcli.engines.vllm.buckets import fill, unpack

SERVER = """
import os, subprocess, sys, time
from vtcli.engines.vllm.servers.owner import own, watch
watch(); own()
sleep = "from vtcli.engines.vllm.servers.owner import watch; watch(); import time; time.sleep(60)"
worker = subprocess.Popen([sys.executable, "-c", sleep])
print(os.getpid(), worker.pid, flush=True)
time.sleep(60)
"""
OWNER = f"""
import os, subprocess, sys
server = subprocess.Popen([sys.executable, "-c", {SERVER!r}], env=os.environ | {{"VTCLI_OWNER": str(os.getpid())}},
                          start_new_session=True)
server.wait()
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:  # also where it ends between open and read
        return True


@pytest.mark.parametrize("killed", ["owner", "server"])
def test_nothing_outlives_its_owner(killed: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    server, worker = map(int, owner.stdout.readline().split())
    os.kill(owner.pid if killed == "owner" else server, signal.SIGKILL)
    until = time.monotonic() + 10
    while not (gone(server) and gone(worker)) and time.monotonic() < until:
        time.sleep(0.01)
    left = [pid for pid in (server, worker) if not gone(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    owner.kill()
    owner.wait(10)
    assert left == []


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(3, 5),
        "b": torch.randn(700).bfloat16(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "large": torch.randn(40, 100),
        "transposed": torch.randn(4, 6).t(),
        "counts": torch.arange(7),
    }


@pytest.mark.parametrize("in_folder", [False, True])
def test_buckets_are_bounded_and_hold_what_was_put_in(tmp_path: Path, in_folder: bool) -> None:
    sizes, found = [], dict[str, torch.Tensor]()
    for bucket in fill(tensors().items(), 2000, tmp_path if in_folder else None):
        sizes.append((bucket.size, len(bucket.entries)))
        found |= dict(unpack(bucket.path, bucket.size, bucket.entries))
        bucket.close()  # what was read stays
    assert found.keys() == tensors().keys()
    for name, value in tensors().items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name
    assert all(size <= 2000 or count == 1 for size, count in sizes)
    assert len(sizes) > 2
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    (bucket,) = fill([("a", torch.ones(100))], 10**6, tmp_path)
    short: Any = tmp_path / "short"
    short.write_bytes(Path(bucket.path).read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"short has \d+ bytes, not \d+"):
        dict(unpack(str(short), bucket.size, bucket.entries))
    bucket.close()
