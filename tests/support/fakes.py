"""Trajectories without a model: a scripted policy in the real world (real chat syntax, real tools, real images)."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from vtcli.config.binding import bind
from vtcli.envs import code, tool_calls
from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.claims import Claims, Verify
from vtcli.envs.code_protocol import CodeProtocol
from vtcli.envs.prompts import PromptStyle
from vtcli.families.calls import format_call, parse_answer, parse_calls
from vtcli.protocols import DecodedTurn, Images, Pixels, Tool
from vtcli.sandbox.types import OutputImage, RunResult, Setup, Status
from vtcli.schema import (
    Completion,
    EnvTurn,
    ImageRef,
    PolicyTurn,
    Sample,
    Scored,
    Signals,
    Stop,
    Trajectory,
    Turn,
    Verdict,
)
from vtcli.signals.measuring import SignalMeter
from vtcli.store.images import ImageStore

ALL_TOOLS = (
    "image_zoom_in_tool",
    "image_rotate_tool",
    "image_flip_tool",
    "image_mark_points_tool",
    "image_draw_horizontal_line_tool",
    "image_draw_vertical_line_tool",
)

PROMPT = PromptStyle("compact", "{tools}", "{question}", "{question}")

CODE_CONF = Path(__file__).parents[2] / "conf" / "env"
CODE_CARDS = ("codev", "codevision", "codedance", "codedance_call", "pyvision_image", "pyvision_video", "thyme")


def make_pixels(seed: int = 0, width: int = 112, height: int = 112) -> Pixels:
    """(height, width, 3) uint8: a smooth gradient with one square, so that crops and flips can be told apart."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 200 // width, y * 200 // height, np.full_like(x, 90 + seed % 100)], axis=-1).astype(np.uint8)
    left, top = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
    pixels[top : top + height // 5, left : left + width // 5] = (240, 230, 60)
    return pixels


def make_sample(store: ImageStore | None = None, **changes: Any) -> Sample:
    """An answer-form zoom sample; without a store its one image is a reference to nothing."""
    sample_id = changes.get("id", "zoom-test-000000")
    pixels = changes.pop("pixels", None)
    if store is not None:
        images = (store.add(make_pixels(sum(map(ord, sample_id))) if pixels is None else pixels),)
    else:
        images = (ImageRef("0" * 64, "0" * 64, 112, 112, 112, 112),)
    fields: dict[str, Any] = {
        "id": sample_id,
        "task": "zoom",
        "form": "answer",
        "split": "test",
        "question": "What letter is on the red tag?",
        "answer": "K",
        "images": images,
        "tools": ALL_TOOLS,
        "truth": {"boxes": [{"label": "red tag", "box": [20, 30, 60, 70]}], "choices": ["K", "N"]},
    }
    return Sample(**(fields | changes))


def make_trajectory(
    sample: Sample,
    texts: Sequence[str | tuple[str, Mapping[str, Any]]],
    store: ImageStore | None = None,
    *,
    stop: Stop = Stop.ANSWERED,
    seed: int = 0,
    error: str | None = None,
) -> Trajectory:
    """What the world makes of these policy turns; a pair (tool, arguments) stands for the text of that call.

    Token ids are the characters' code points, log-probabilities are -0.5. Calls need a store that has the pixels.
    """
    images, turns = list(sample.images), list[Turn]()
    env = open_native(sample, store) if store is not None else None
    for entry in texts:
        text = entry if isinstance(entry, str) else f"<think>Look.</think>{format_call(entry[0], dict(entry[1]))}"
        ids = tuple(map(ord, text))
        calls, answer = parse_calls(text), parse_answer(text)
        turns.append(PolicyTurn(Completion(ids, (-0.5,) * len(ids), "stop"), text, calls, answer, version=0))
        if not calls:
            break
        if env is None:
            raise ValueError("a call needs a store")
        with ThreadPoolExecutor(1) as other:  # the loop of a browser's driver may run in this thread
            observation = other.submit(asyncio.run, env.step(DecodedTurn(text, calls, answer), images)).result()
        if observation is None:
            raise ValueError("the environment did not answer a call")
        images.extend(observation.images)
        turns.append(EnvTurn(observation, tuple(map(ord, observation.text))))
    trajectory_id = f"{sample.id}-{sample.form}-{seed}"
    return Trajectory(trajectory_id, sample, (1, 2, 3), tuple(images), tuple(turns), stop, seed, error)


def make_scored(trajectory: Trajectory, values: Mapping[str, Any], parts: Mapping[str, float] | None = None) -> Scored:
    """Signals as given, and a verdict that sums its parts; no verdict without parts."""
    verdict = None if parts is None else Verdict(sum(parts.values()), parts)
    return Scored(trajectory, Signals(values), verdict)


def make_run(status: str = "ok", *shown: Pixels, **fields: Any) -> RunResult:
    """What a run gave back, with images as ``plt.show()`` leaves them."""
    images = tuple(OutputImage(pixels, "show") for pixels in shown)
    return RunResult(Status(status), **({"images": images} | fields))


async def sure(trajectory: Trajectory, images: Images, verify: Verify) -> Trajectory:
    """The trajectory with its claims tested, as a reward that asks gets it."""
    return await Claims(images, verify, SignalMeter([], None, images, Path())).tested(trajectory)


class FakeRunner:
    """A ``Runner`` whose runs end as told, one after the other, and without output past the script; what it was asked
    is kept."""

    def __init__(self, *results: RunResult | Exception) -> None:
        self.results = list(results)
        self.setups: list[Setup] = []
        self.sources: list[str] = []
        self.closed = 0

    async def open(self, setup: Setup) -> FakeRunner:
        self.setups.append(setup)
        return self

    async def run(self, source: str) -> RunResult:
        self.sources.append(source)
        result = self.results.pop(0) if self.results else RunResult(Status.NO_OUTPUT)
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        self.closed += 1


@functools.cache
def native_card() -> EnvCard:
    """The environment of conf/env/native.yaml, with the tools of its defaults list."""
    listed = yaml.safe_load((CODE_CONF / "native.yaml").read_text())["defaults"][0]["/tool@tools"]
    files = (yaml.safe_load((CODE_CONF.parent / "tool" / f"{name}.yaml").read_text()) for name in listed)
    return tool_calls.card(tools={key: bind(node, key) for file in files for key, node in file.items()})


def native_tools() -> dict[str, Tool]:
    """Its tools by name."""
    return {tool.name: tool for tool in native_card().tools}


def open_native(sample: Sample, images: Images, prompt: PromptStyle = PROMPT) -> tool_calls.ToolCalls:
    """Its environment of one sample, with the tools that the sample lists."""
    env = native_card().open(sample, EnvInputs(images, prompt))
    assert isinstance(env, tool_calls.ToolCalls)
    return env


def env_card(name: str) -> EnvCard:
    """The card of conf/env/<name>.yaml, of code."""
    return code.card(protocol=code_card(name))


@functools.cache
def code_card(name: str) -> CodeProtocol:
    """The environment of conf/env/<name>.yaml."""
    return bind(yaml.safe_load((CODE_CONF / f"{name}.yaml").read_text()), "env").keywords["protocol"]


def tagged(code: str) -> str:
    """Code as most papers want it."""
    return f"<code>\n```python\n{code}\n```\n</code>"


def called(name: str, **arguments: Any) -> str:
    """A call of the function that card ``name`` offers."""
    return f"<tool_call>\n{json.dumps({'name': code_card(name).reading.name, 'arguments': arguments})}\n</tool_call>"


def written(name: str, code: str) -> str:
    """Code as card ``name`` wants it."""
    return tagged(code) if code_card(name).reading.style == "tag" else called(name, code=code)


def cut_image(path: Path, row: int) -> None:
    """Cuts the first image of a stored row in half, as a full disk would; what writes rows refuses such an image."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    image = rows[row]["images"][0]
    image["bytes"] = image["bytes"][: len(image["bytes"]) // 2]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
