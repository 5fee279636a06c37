"""``vtcli sft`` plays demonstrations of code: right ones pass, wrong ones end it, and it names those it cannot play."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import PROMPT, env_card, make_pixels, tagged
from qwen_views import sizing

from stages import sft
from vtcli.algo.optim import Optim
from vtcli.data.generators.item import ZOOM
from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.demonstrate import MemoryImages
from vtcli.envs.played import Playback, playback
from vtcli.errors import InputError
from vtcli.protocols import ALONE, Pixels
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.schema import ImageRef
from vtcli.store import records
from vtcli.store.images import ImageStore, encode_png, resize
from vtcli.store.records import Demo, DemoSet

VIEWS = sizing(10_000, 12_600)
PICTURE: Pixels = make_pixels(1, 112, 98)
SMALL: Pixels = resize(make_pixels(1, 448, 448), 112, 112)  # the view of a larger picture
NEAR, FAR, BEYOND = [14, 28, 70, 84], [300, 200, 400, 350], [3000, 2000, 4000, 3500]
CARDS = ("codev", "codevision", "codedance", "pyvision_image", "thyme")
Talk = tuple[dict[str, str], ...]


def crop(name: str, box: list[int] = NEAR) -> str:
    """A turn that crops, as an environment wants it."""
    return env_card(name).spoken.act(ZOOM, {"bbox_2d": box}, 0)


def talk(*turns: tuple[str, str]) -> Talk:
    """A question, turns of code and their observations, and an answer."""
    messages = [{"role": "user", "content": "<image>What is it?"}]
    for text, observation in turns:
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": observation}]
    return (*messages, {"role": "assistant", "content": "<answer>\\boxed{a tower}</answer>"})


HALF, MORE = tagged("half = image.width // 2\nprint(half)"), tagged("print(half + 1)")
CROPPED = {name: talk((crop(name), "<image>")) for name in CARDS}
MISSPELT = {name: talk((crop(name).replace("crop(", "corp("), "<image>")) for name in CARDS}
PLAYED: Mapping[str, tuple[str, Pixels, tuple[Talk, ...]]] = {
    **{name: (name, PICTURE, (CROPPED[name], MISSPELT[name], CROPPED[name])) for name in CARDS},
    "names stay": ("codev", PICTURE, (talk((HALF, "56"), (MORE, "57")),)),
    "a failure that is shown": ("codev", PICTURE, (talk((MORE, "NameError: name 'half' is not defined")),)),
    "no such name": ("codev", PICTURE, (talk((MORE, "57")),)),
    "no image": ("codev", PICTURE, (talk((HALF, "<image>")),)),
    "in pixels of an original": ("codev", SMALL, (talk((crop("codev", FAR), "<image>")),)),
    "beside every original": ("codev", SMALL, (talk((crop("codev", BEYOND), "<image>")),)),
    "beside the view": ("codedance", SMALL, (talk((crop("codedance", FAR), "<image>")),)),
}
RIGHT: Mapping[str, tuple[int, int, str]] = {
    **dict.fromkeys(CARDS, (3, 0, "d1: ")),
    "names stay": (2, 0, ""),
    "a failure that is shown": (1, 1, ""),
    "no such name": (1, 0, "half"),
    "no image": (1, 0, "it makes no image"),
    "in pixels of an original": (1, 0, ""),
    "beside every original": (1, 0, "d0: "),
    "beside the view": (1, 0, "d0: "),
}
"""Calls, those that are meant to fail, and a part of the one failure; empty: nothing fails."""


def test_code_of_demonstrations_is_played_in_every_environment() -> None:
    """codev hands code the picture of its file, and demonstrations keep the view of it: a size that nobody knows. In
    codedance the code gets the view."""

    async def played(pool: Pool, name: str, pixels: Pixels, talks: tuple[Talk, ...]) -> Playback:
        images = MemoryImages(VIEWS)
        crops = images.add(np.ascontiguousarray(pixels[28:84, 14:70]))
        demos = [Demo(f"d{n}", messages, (), (images.add(pixels), crops)) for n, messages in enumerate(talks)]
        return await playback(demos, env_card(name), EnvInputs(images, PROMPT, pool), at_once=2, timeout_s=200)

    async def every() -> dict[str, Playback]:
        async with await Pool.start(PoolConfig(active=2)) as pool:
            return {name: await played(pool, *case) for name, case in PLAYED.items()}

    wrong: dict[str, Playback] = {}
    for name, found in asyncio.run(every()).items():
        calls, meant, failure = RIGHT[name]
        failed = len(found.failures) == bool(failure) and all(failure in text for text in found.failures)
        if (found.rows, found.calls, found.meant) != (len(PLAYED[name][2]), calls, meant) or not failed:
            wrong[name] = found
    assert not wrong


class WatchedImages(MemoryImages):
    """Images that note how many are added, and whether the main thread reads pixels."""

    def __init__(self) -> None:
        super().__init__(VIEWS)
        self.added, self.blocked = 0, False

    def add(self, pixels: Pixels, parent: int | None = None, transform: Mapping[str, Any] | None = None) -> ImageRef:
        self.added += 1
        return super().add(pixels, parent, transform)

    def full(self, ref: ImageRef) -> Pixels:
        self.blocked |= threading.current_thread() is threading.main_thread()
        return super().full(ref)


def test_a_view_is_enlarged_beside_the_event_loop_and_adds_no_image_to_the_run() -> None:
    images = WatchedImages()
    shown = (images.add(SMALL), images.add(SMALL[28:84, 14:70]))

    async def played() -> Playback:
        async with await Pool.start(PoolConfig(active=1)) as pool:
            demo = Demo("d0", talk((crop("codev", FAR), "<image>")), (), shown)
            return await playback([demo], env_card("codev"), EnvInputs(images, PROMPT, pool), timeout_s=200)

    found = asyncio.run(played())
    assert (found.calls, found.failures) == (1, ())
    assert (images.added, images.blocked) == (len(shown), False)


def test_sft_plays_code_before_it_trains_and_says_what_is_not_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows() -> Any:
        for number, messages in enumerate((CROPPED["codev"], MISSPELT["codev"], CROPPED["codev"])):
            yield Demo(f"d{number}", messages, ()), [encode_png(PICTURE), encode_png(PICTURE[28:84, 14:70])]

    records.write_demos(tmp_path / "train.parquet", rows())
    store = ImageStore(tmp_path / "images", VIEWS)

    def checked(name: str = "codev", **keys: Any) -> str:
        def card() -> EnvCard:
            return env_card(name)

        config = sft.Config(
            data="demos:v1", model="m", optim=Optim(), epochs=1, rows_per_step=1, rows=None, first=sft.First(),
            checkpoint_every=9, checkpoint_beside=True, checkpoint_keep=1, checkpoint_best=None,
            checkpoint_best_mode="max", env=card, prompt={"style": "compact", "system": "{tools}",
            "tool_question": "{question}", "answer_question": "{question}", "observation": "<image>"},
            **({"sandbox": PoolConfig(active=2)} | keys),
        )  # fmt: skip
        sft._require_playable(config, DemoSet(tmp_path, "train", store), store, ALONE)
        return capsys.readouterr().err

    with pytest.raises(InputError, match=r"demos:v1: 3 of 3 demonstrations.* codev: 2 of 3 calls.*\n  d1: .*corp") as e:
        checked()
    assert "sft.max_failed" in str(e.value)
    cases: dict[str, tuple[str, dict[str, Any], str]] = {
        "no sandbox": ("codev", {"sandbox": PoolConfig(start_timeout_s=1e-6)}, "is not played in the environment"),
        "no descriptors": ("codev", {"sandbox": PoolConfig(active=2**40)}, "the limit is"),
        "no video": ("pyvision_video", {}, "has no video"),
        "no time": ("codev", {"play_timeout_s": 1e-9}, "0 of 3 demonstrations played in the environment codev (3 more"),
        "not wanted": ("codev", {"play_rows": 0}, ""),
    }
    failed: dict[str, str] = {}
    for what, (name, keys, expected) in cases.items():
        said = checked(name, **keys)
        if expected not in said or said.count("\n") != bool(expected):
            failed[what] = said
    assert not failed
