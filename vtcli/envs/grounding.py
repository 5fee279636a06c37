"""Mini-o3's world (arXiv 2509.07969): one crop a turn, of the original image or of an earlier crop.

The policy writes ``<grounding>{"bbox_2d": [x0, y0, x1, y1], "source": "original_image"}</grounding>``; the box is in
shares of the source's width and height, and a source is ``original_image`` or ``observation_i``, the i-th crop. The
texts are a card's (conf/env/mini_o3.yaml). Released code: Mini-o3/Mini-o3 8654dbf, function_tools.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from vtcli.data.generators.item import ZOOM
from vtcli.envs.card import THOUSANDTHS, EnvCard, EnvInputs
from vtcli.envs.code_reading import split
from vtcli.envs.code_writing import harmless
from vtcli.errors import ConfigError, ToolError
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.families.templates import fill
from vtcli.protocols import DecodedTurn, Images, Syntax
from vtcli.schema import Call, CallResult, ImageRef, Json, Observation, Sample
from vtcli.store.image_work import in_thread
from vtcli.tools import arguments as args

NAME = "grounding"
ORIGINAL = "original_image"

_SOURCE = re.compile(r"observation_([0-9]{1,6})")
_TAGS = ("grounding", "answer", "think")


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts for the policy. ``shown`` holds one ``<image>``. It may hold ``{action}``, the turn's number from 0, and
    ``{observation}``, the number by which the new image can be named. ``error`` holds ``{error}``."""

    system: str
    shown: str
    error: str
    question: str = "{question}"
    bare: str = ""  # the system prompt where no crop is on offer (eval.tools=none)

    def __post_init__(self) -> None:
        if self.shown.count("<image>") != 1 or "{error}" not in self.error or "{question}" not in self.question:
            raise ValueError("shown must hold <image> once, error {error}, and question {question}")


def read(text: str) -> DecodedTurn:
    """The last complete action of a turn, as the released code's greedy pattern finds it, and the answer outside of it.

    >>> read('<grounding>{"bbox_2d": [0, 0, 0.5, 1], "source": "original_image"}</grounding>').calls[0].arguments
    {'bbox_2d': [0, 0, 0.5, 1], 'source': 'original_image'}
    """
    blocks, rest = split(text, "<grounding>", "</grounding>")
    answer = parse_answer(rest)
    if not blocks:
        return DecodedTurn(text, (), answer)
    raw = blocks[-1]
    # The strict JSON reader of native tools' calls: finite numbers, no lone surrogates.
    call = parse_calls(f'<tool_call>{{"name": "{NAME}", "arguments": {raw}}}</tool_call>')[0]
    return DecodedTurn(text, (replace(call, raw=raw, name=NAME),), answer)


@dataclass(frozen=True, slots=True)
class GroundingDialect:
    """Writer of turns for demonstrations and the oracle. The planner's places are thousandths of the image."""

    def act(self, name: str, arguments: Mapping[str, Json], image: int) -> str:
        """Raises ``ConfigError`` for anything but a crop."""
        if name != ZOOM:
            raise ConfigError(f"mini_o3 can only crop; a script wants {name}. Choose tasks that are solved by crops.")
        box = [value / THOUSANDTHS for value in arguments["bbox_2d"]]
        named = f"observation_{image}" if image else ORIGINAL
        return f"<grounding>{json.dumps({'bbox_2d': box, 'source': named})}</grounding>"

    def reply(self, answer: str) -> str:
        return f"<answer>{answer}</answer>"


class GroundingEnv:
    """An ``Env``."""

    syntax = Syntax(read=read, reply="user")

    def __init__(self, sample: Sample, texts: Texts, images: Images, max_aspect: float, offered: bool) -> None:
        self.sample, self.texts, self.images = sample, texts, images
        self.max_aspect, self.offered = max_aspect, offered
        self._turn = 0

    async def reset(self) -> tuple[str, str]:
        system = self.texts.system if self.offered else self.texts.bare
        return system.strip(), fill(self.texts.question, {"question": self.sample.question}).strip()

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        """The crop, made beside the event loop. None without an action: the turn is final."""
        if not turn.calls:
            return None
        (call,), action = turn.calls, self._turn
        self._turn += 1
        return await in_thread(partial(self._answer, call, tuple(images), action))

    async def close(self) -> None:
        return None

    def _answer(self, call: Call, images: Sequence[ImageRef], action: int) -> Observation:
        """Carries out one action; in any thread."""
        begin = time.perf_counter()
        try:
            ref = self._crop(call, images)
        except ToolError as error:
            text = fill(self.texts.error, {"error": harmless(str(error), _TAGS)})
            wall_s = time.perf_counter() - begin
            return Observation(text, (), (CallResult(NAME, call.arguments, "error", str(error), wall_s),))
        number = str(len(images) - len(self.sample.images) + 1)
        text = fill(self.texts.shown, {"action": str(action), "observation": number})
        wall_s = time.perf_counter() - begin
        return Observation(text, (ref,), (CallResult(NAME, call.arguments, "ok", text, wall_s, (len(images),)),))

    def _crop(self, call: Call, images: Sequence[ImageRef]) -> ImageRef:
        if not self.offered:
            raise ToolError("no image can be cropped here")
        if call.problem is not None:
            raise ToolError(call.problem)
        given = call.arguments or {}
        box = args.numbers(args.required(given, "bbox_2d"), "bbox_2d", 4)
        parent = source(args.required(given, "source"), len(self.sample.images), len(images))
        ref = images[parent]
        x1, y1, x2, y2 = cut = pixel_box(box, ref.width, ref.height, self.max_aspect)
        pixels = np.ascontiguousarray(self.images.full(ref)[y1:y2, x1:x2])
        # The record of a crop has its box twice: in pixels of the view, as all environments do, and of the original.
        scale = ref.view_width / ref.width, ref.view_height / ref.height
        seen = [value * scale[i % 2] for i, value in enumerate(cut)]
        return self.images.add(pixels, parent, {"op": "zoom", "box": seen, "box_full": list(cut)})


def source(value: Json, given: int, count: int) -> int:
    """The index of the image that an action names; of ``count`` images the first ``given`` are the question's.

    >>> source("original_image", 1, 3), source("observation_2", 1, 3)
    (0, 2)
    """
    found = _SOURCE.fullmatch(value) if isinstance(value, str) else None
    if value != ORIGINAL and found is None:
        raise ToolError("source must be original_image or observation_i")
    number = int(found.group(1)) if found else 0
    index = given - 1 + number if number else 0
    if index >= count or not count:
        have = f"observation_1 to observation_{count - given}" if count > given else "only original_image"
        raise ToolError(f"there is no observation_{number}; {have} can be named")
    return index


def pixel_box(box: Sequence[float], width: int, height: int, max_aspect: float) -> tuple[int, int, int, int]:
    """A box in shares of an image as its pixels. As in the released code, it is rounded towards 0 and kept off the last
    row and column. Raises ``ToolError`` for a box without area, or ``max_aspect`` times as long as wide.

    >>> pixel_box((0.25, 0.5, 1.0, 1.0), 112, 112, 200)
    (28, 56, 111, 111)
    """
    x1, y1 = max(int(box[0] * width), 0), max(int(box[1] * height), 0)
    x2, y2 = min(int(box[2] * width), width - 1), min(int(box[3] * height), height - 1)
    if x1 >= x2 or y1 >= y2:
        raise ToolError("bbox_2d must be [x0, y0, x1, y1] with x0 < x1 and y0 < y1, from 0 to 1")
    if max(x2 - x1, y2 - y1) >= max_aspect * min(x2 - x1, y2 - y1):
        raise ToolError(f"bbox_2d is too narrow: {x2 - x1}x{y2 - y1} pixels, less than {max_aspect:g}:1 is needed")
    return x1, y1, x2, y2


def card(*, texts: Texts, compact: Texts | None = None, name: str = "mini_o3", max_aspect: float = 200.0) -> EnvCard:
    """The card, see conf/env/mini_o3.yaml. ``compact`` are the texts for ``prompt.style=compact``."""
    opened = partial(_open, texts, compact, max_aspect)
    return EnvCard(name, opened, dialect=GroundingDialect(), coordinates="thousandths")


def _open(texts: Texts, compact: Texts | None, max_aspect: float, sample: Sample, inputs: EnvInputs) -> GroundingEnv:
    chosen = compact if inputs.prompt.style == "compact" and compact else texts
    return GroundingEnv(sample, chosen, inputs.images, max_aspect, inputs.offered)
