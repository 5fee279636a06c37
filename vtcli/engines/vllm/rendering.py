"""Prompts with images, made ready for vLLM beside the engine's thread.

Images are decoded in a pool. vLLM's processor runs in one thread, because its cache mirrors the engine's, and both must
see the images in the same order. An image that the engine has is neither decoded nor processed: its name is enough.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from PIL import Image

from vtcli.families.family import Family
from vtcli.protocols import Request, View
from vtcli.rollout.clock import Clock
from vtcli.schema import ImageRef

DECODERS = 4
"""Threads that read images."""


class Renderer:
    """vLLM's renderer, in separate threads. ``clock`` runs while images are processed, as they are read to sample."""

    def __init__(self, renderer: Any, family: Family, view: View, clock: Clock) -> None:
        self._renderer, self._family, self._view, self._clock = renderer, family, view, clock
        self._decoders = ThreadPoolExecutor(DECODERS, "decode")
        self._processor = ThreadPoolExecutor(1, "render")
        self._guard = threading.Lock()  # vLLM's processor and its cache serve one thread at a time
        self._known: set[str] = set()  # views that the engine was given

    async def ready(self, request: Request) -> Any:
        """The engine's input for a prompt. Prompts come out in the order in which their images were read."""
        if not request.images:
            return self._rendered(request, ())
        loop = asyncio.get_running_loop()
        names = dict.fromkeys(ref.view for ref in request.images)
        missing = {ref.view: ref for ref in request.images if ref.view not in self._known}
        read = await asyncio.gather(*(loop.run_in_executor(self._decoders, self._picture, missing[n]) for n in missing))
        pictures = dict.fromkeys(names) | dict(zip(missing, read, strict=True))
        return await loop.run_in_executor(self._processor, self._known_or_whole, request, pictures)

    def whole(self, request: Request, salt: str = "") -> Any:
        """The same with all images, in the calling thread. ``salt``: nothing of it is in the prefix cache."""
        return self._rendered(request, [self._picture(ref) for ref in request.images], salt)

    def drop(self, identities: Sequence[str]) -> None:
        """Forgets images that the engine has dropped, by vLLM's names for them, so that they are processed again."""
        with self._guard:
            self._known.clear()
            for identity in identities:
                self._renderer.mm_processor_cache.invalidate(identity)

    def forget(self, engine: Any) -> None:
        """Empties the caches of images on both sides."""
        with self._guard:
            self._known.clear()
            engine.reset_mm_cache()

    def close(self) -> None:
        """Ends the threads."""
        for pool in (self._decoders, self._processor):
            pool.shutdown(wait=False, cancel_futures=True)

    def _known_or_whole(self, request: Request, pictures: dict[str, Image.Image | None]) -> Any:
        try:
            return self._rendered(request, [pictures[ref.view] for ref in request.images])
        except ValueError:  # the processor's cache has dropped an image that it was given
            if all(pictures.values()):
                raise
            return self.whole(request)

    def _rendered(self, request: Request, pictures: Sequence[Image.Image | None], salt: str = "") -> Any:
        """One placeholder per image, and every image by the digest of its view."""
        prompt: dict[str, Any] = {"prompt_token_ids": self._family.vllm.prompt(request.token_ids, request.images)}
        if request.images:
            prompt["multi_modal_data"] = {"image": list(pictures)}
            # The view's digest names the image, so that vLLM hashes no pixels and equal views share their cache.
            prompt["multi_modal_uuids"] = {"image": [ref.view for ref in request.images]}
        if salt:
            prompt["cache_salt"] = salt
        if not request.images:
            return self._renderer.render_cmpl([prompt])[0]
        with self._guard, self._clock.during("generate"):
            (ready,) = self._renderer.render_cmpl([prompt])
            self._known |= {ref.view for ref in request.images}
        return ready

    def _picture(self, ref: ImageRef) -> Image.Image:
        return Image.fromarray(self._view(ref))
