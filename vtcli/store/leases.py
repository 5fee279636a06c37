"""Images that lie on disk for as long as somebody holds them: a server that runs for weeks fills no disk."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vtcli.protocols import Pixels
from vtcli.schema import ImageRef
from vtcli.store.images import ImageStore


class LeasedImages:
    """An image store whose files go when the last lease that holds them is released. Safe for threads.

    The store's folder must belong to this process alone.
    """

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        self._holders: Counter[str] = Counter()
        self._settled: set[str] = set()
        self._guard = threading.Lock()

    def lease(self, images: Iterable[ImageRef] = ()) -> Lease:
        """A lease that holds these images, which another one holds now."""
        lease = Lease(self)
        for ref in images:
            if not lease.hold(ref):
                raise ValueError(f"the image {ref.full} is held by no lease")
        return lease

    def held(self, sha: str) -> bool:
        """True if an image, by its sha256, is held."""
        return self._holders[sha] > 0

    def take(self, shas: Iterable[str]) -> bool:
        """Adds a holder to each, or to none where a file is gone."""
        wanted = tuple(shas)
        with self._guard:
            # All or none, so that a caller never holds half of an image and its view.
            if not all(self.store.path(sha).exists() for sha in wanted):
                return False
            self._holders.update(wanted)
            return True

    def settle(self, shas: Iterable[str]) -> None:
        """Keeps these images for good: they are never removed."""
        with self._guard:
            self._settled.update(shas)

    def give_back(self, shas: Iterable[str]) -> None:
        """Removes a holder from each, and the files without one."""
        with self._guard:
            for sha in shas:
                self._holders[sha] -= 1
                if self._holders[sha] <= 0:
                    del self._holders[sha]
                    if sha not in self._settled:
                        self.store.path(sha).unlink(missing_ok=True)


class Lease:
    """An image store for tools and engines (``Images``) that holds whatever is added through it."""

    def __init__(self, images: LeasedImages) -> None:
        self._images = images
        self._held: set[str] = set()
        self._guard = threading.Lock()
        self._released = False

    def hold(self, ref: ImageRef) -> bool:
        """Holds an image that is in the store; False where its files are gone."""
        with self._guard:
            new = {ref.full, ref.view} - self._held
            if not self._images.take(new):
                return False
            self._held |= new
            if self._released:  # a thread that was still at work when its request ended
                self._give_back()
            return True

    def add(self, pixels: Pixels, parent: int | None = None, transform: Mapping[str, Any] | None = None) -> ImageRef:
        """As ``ImageStore.add``."""
        while not self.hold(ref := self._images.store.add(pixels, parent, transform)):
            pass  # it was there and went before it was held: it is written again
        return ref

    def add_encoded(self, data: bytes, where: str) -> ImageRef:
        """As ``ImageStore.add_encoded``."""
        while not self.hold(ref := self._images.store.add_encoded(data, where)):
            pass
        return ref

    def full(self, ref: ImageRef) -> Pixels:
        return self._images.store.full(ref)

    def view(self, ref: ImageRef) -> Pixels:
        return self._images.store.view(ref)

    def path(self, sha: str) -> Path:
        return self._images.store.path(sha)

    def settle(self) -> None:
        """The images stay for good, whoever releases them."""
        self._images.settle(self._held)

    def release(self) -> None:
        """Holds nothing more, now and later."""
        with self._guard:
            self._released = True
            self._give_back()

    def _give_back(self) -> None:
        self._images.give_back(self._held)
        self._held = set()
