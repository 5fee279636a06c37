"""Can a value be read off a tiny chart, and where is it lost? ``python tests/bench/probe_charts.py [MODEL]``

A linear readout of the value is trained on what each part of a model knows: the pixels, the vision tower's tokens, and
the language model's state where it answers. Its accuracy on other charts stands beside the model's own answers. The
readout of the tower is repeated with random weights. Chance is one over the number of values.

A last part asks whether the line that Read-Value's tools draw helps: the readout of the tower with and without the
right line, with places that vary little, as in the tiny world, and much.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from vtcli.config.binding import bind
from vtcli.data.generators.item import Item
from vtcli.families.table import open_family
from vtcli.schema import ImageRef, TrainRow
from vtcli.statistics.metrics import wilson
from vtcli.store.images import resize
from vtcli.store.models import SHIPPED
from vtcli.tools.draw_line import DrawLine

CONF = Path(__file__).parents[2] / "conf" / "data" / "toolsrl_tiny.yaml"
TRAIN, TEST = 1500, 300
VALUES = tuple(str(value) for value in range(0, 11, 2))  # of an axis in conf/data/toolsrl_tiny.yaml
REF = ImageRef("0", "0", 112, 112, 112, 112)


@dataclass
class Chart:
    """One chart as a model sees it, with the place of its value among ``VALUES``."""

    item: Item
    view: np.ndarray
    value: int


def charts(split: str, count: int, axis: str, change: dict[str, Any]) -> list[Chart]:
    """Charts of conf/data/toolsrl_tiny.yaml that ask for ``axis``; ``change`` goes over the chart's sizes."""
    node = yaml.safe_load(CONF.read_text())["tasks"]["read_value"]["generate"]
    node["size"] |= {"axes": [axis]}
    node["size"]["chart"] |= change
    make, found = bind(node, "read_value"), list[Chart]()
    for number in range(count):
        item = make(seed=0, item=number, split=split)
        found.append(Chart(item, resize(item.pixels, 112, 112), VALUES.index(item.answer)))
    return found


def readout(train: np.ndarray, right: Sequence[int], test: np.ndarray, wanted: Sequence[int]) -> int:
    """Right answers on the test charts of a linear classifier (ridge regression of one-hot values, the best of four
    penalties on a fifth of the training charts)."""
    mean, spread = train.mean(0), train.std(0) + 1e-6
    x, z = (train - mean) / spread, (test - mean) / spread
    y = np.eye(len(VALUES))[list(right)]
    kernel, cut = x @ x.T, len(x) * 4 // 5

    def fitted(rows: slice, penalty: float) -> np.ndarray:
        gram = kernel[rows, rows]
        return np.linalg.solve(
            gram + penalty * np.trace(gram) / len(gram) * np.eye(len(gram)), y[rows] - y[rows].mean(0)
        )

    def held_out(penalty: float) -> float:
        return float(np.mean((kernel[cut:, :cut] @ fitted(slice(cut), penalty)).argmax(1) == np.array(right)[cut:]))

    best = max((0.001, 0.01, 0.1, 1.0), key=held_out)
    said = (z @ x.T) @ fitted(slice(len(x)), best)
    return int(np.sum(said.argmax(1) == np.array(wanted)))


@torch.inference_mode()
def tower(family: Any, model: Any, found: Sequence[Chart]) -> np.ndarray:
    """The vision tower's tokens of every chart, one after the other (charts, 16 x hidden)."""
    pixels = [torch.from_numpy(family.pixels(chart.view)) for chart in found]
    grid = family.patches.grid(REF)
    rows = [family.tower(model, pixel, [grid])[0].flatten().numpy() for pixel in pixels]
    return np.stack(rows)


@torch.inference_mode()
def answers(family: Any, model: Any, found: Sequence[Chart]) -> tuple[np.ndarray, list[int]]:
    """The language model's last state after ``<answer>`` (charts, hidden), and the value that it finds likeliest."""
    ends = [family.chat.encode_turn(f"<answer>{value}</answer>") for value in VALUES]
    shared = next(n for n in range(len(ends[0])) if len({end[n] for end in ends}) > 1)
    states, said = list[np.ndarray](), list[int]()
    for chart in found:
        ids = (*family.chat.prompt("", chart.item.question, (REF,)), *ends[0][:shared])
        row = TrainRow("", ids, (0,) * len(ids), (REF,))
        out = model(**family.plain_inputs(row, partial(_view, chart)), output_hidden_states=True)
        states.append(out.hidden_states[-1][0, -1].numpy())
        said.append(int(out.logits[0, -1, [end[shared] for end in ends]].argmax()))
    return np.stack(states), said


def _view(chart: Chart, ref: ImageRef) -> np.ndarray:
    del ref
    return chart.view


def lined(chart: Chart) -> Chart:
    """The chart with the vertical line through its point."""
    (primitive,) = chart.item.truth["primitives"]
    return Chart(chart.item, DrawLine("x")(chart.view, REF, {"x_position": primitive["x"]}).pixels, chart.value)


def line(name: str, hits: int) -> str:
    found = wilson(hits, TEST)
    return f"  {name:42s} {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def main(folder: Path) -> None:
    """Prints a line for each part of the model, for either axis."""
    family = open_family(folder)
    model, blank = (family.load(torch.float32).eval() for _ in range(2))
    torch.manual_seed(0)
    for weights in blank.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.08)  # conf/model/tiny.yaml
    for jitter in (2, 24):
        for drawn in (False, True):
            train, test = (charts(split, n, "x", {"jitter": jitter}) for split, n in (("train", TRAIN), ("test", TEST)))
            parts = [[lined(chart) if drawn else chart for chart in part] for part in (train, test)]
            right, wanted = ([chart.value for chart in part] for part in parts)
            hits = readout(tower(family, model, parts[0]), right, tower(family, model, parts[1]), wanted)
            print(line(f"jitter {jitter} px, {'with' if drawn else 'without'} the line", hits), flush=True)
    for axis in "xy":
        train, test = charts("train", TRAIN, axis, {}), charts("test", TEST, axis, {})
        right, wanted = ([chart.value for chart in part] for part in (train, test))

        def read(make: Any, train: Any = train, test: Any = test, right: Any = right, wanted: Any = wanted) -> int:
            return readout(make(train), right, make(test), wanted)

        print(f"{axis}-value, {TEST} charts, chance {1 / len(VALUES):.3f}")
        print(line("readout of pixels", read(lambda f: np.stack([c.view[::2, ::2].ravel() / 255 for c in f]))))
        print(line("readout of the tower, random weights", read(partial(tower, family, blank))))
        print(line("readout of the tower", read(partial(tower, family, model))))
        (states, _), (held, said) = answers(family, model, train), answers(family, model, test)
        print(line("readout of the language model's last state", readout(states, right, held, wanted)))
        print(line("the model's own answers", sum(a == b for a, b in zip(said, wanted, strict=True))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED / "base" / "v1")
