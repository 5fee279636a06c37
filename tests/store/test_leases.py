"""Images stay on disk for as long as somebody holds them, also when threads add and release the same ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from vtcli.store.images import ImageStore
from vtcli.store.leases import LeasedImages


def test_the_last_release_removes_an_image_and_what_is_settled_stays(tmp_path: Path) -> None:
    images = LeasedImages(ImageStore(tmp_path))
    first, second = images.lease(), images.lease()
    ref = first.add(np.zeros((28, 28, 3), np.uint8))
    kept = first.add(np.ones((28, 28, 3), np.uint8))
    assert second.add(np.zeros((28, 28, 3), np.uint8)) == ref
    third = images.lease([kept])
    third.settle()
    for lease in (first, first, third):
        lease.release()
    assert images.held(ref.full) and second.path(ref.full).exists()
    second.release()
    assert not images.held(ref.full) and not second.path(ref.full).exists() and second.path(kept.full).exists()
    late = second.add(np.zeros((28, 28, 3), np.uint8))  # by a thread that was at work when its request ended
    assert not second.path(late.full).exists()


def test_threads_never_lose_an_image_that_they_hold(tmp_path: Path) -> None:
    images = LeasedImages(ImageStore(tmp_path, cache_mb=0))

    def use(number: int) -> bool:
        lease = images.lease()
        ref = lease.add(np.full((8, 8, 3), number % 2, np.uint8))
        there = lease.path(ref.full).exists()
        lease.release()
        return there

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(300)))
    assert not list(tmp_path.rglob("*.png"))
