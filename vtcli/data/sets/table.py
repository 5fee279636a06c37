"""The names of the public sets, and functions from outside."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, cast

from vtcli.config.binding import bind, nearest
from vtcli.data.sets import questions, talks, verl
from vtcli.data.sets.row import RowFunction
from vtcli.errors import ConfigError

TRAJECTORIES: Mapping[str, RowFunction] = {
    "deepeyes_results": verl.deepeyes_results,
    "inspect": talks.inspect,
    "openai": talks.openai,
    "pyvision_sft": talks.pyvision_sft,
    "sharegpt": talks.sharegpt,
    "swift": talks.swift,
    "thyme_sft": talks.thyme_sft,
    "trl": talks.trl,
    "verl_rollouts": verl.verl_rollouts,
}

SETS: Mapping[str, RowFunction] = {
    **TRAJECTORIES,
    "chartqa": questions.chartqa,
    "codedance_rl": verl.codedance_rl,
    "codevision_rl": verl.codevision_rl,
    "easy_vqa": questions.easy_vqa,
    "llava": questions.llava,
    "mini_o3": questions.mini_o3,
    "pixel_reasoner": questions.pixel_reasoner,
    "problem_solution": questions.problem_solution,
    "pyvision_rl": questions.pyvision_rl,
    "spacer": questions.spacer,
    "thyme_rl": questions.thyme_rl,
    "verl": verl.verl,
    "vtcli": questions.vtcli,
    "webdataset": questions.webdataset,
}

LISTS = {"inspect": "samples"}
"""The list of rows in files of a set that are one JSON object."""


_PARTIALS: dict[Any, RowFunction] = {}


def row_function(row: Any) -> RowFunction | None:
    """The function of a public set's name, of ``{_target_: mymodule.row}``, or as it is; None for own columns.

    Raises:
        ConfigError: no such set or function.
    """
    if isinstance(row, functools.partial):  # one object for equal ones: what was read with it is kept by it
        return _PARTIALS.setdefault((row.func, repr(sorted(row.keywords.items()))), row)
    if row is None or callable(row):
        return cast("RowFunction | None", row)
    if isinstance(row, Mapping):
        return _bound(json.dumps(row, sort_keys=True))
    if row in SETS:
        return SETS[row]
    said = f"Write {{_target_: {row}}} for a function of your own." if "." in str(row) else nearest(str(row), SETS)
    raise ConfigError(f"row: there is no public set {row!r}. {said.strip()}")


@functools.lru_cache(maxsize=16)
def _bound(node: str) -> RowFunction:
    return cast("RowFunction", bind(json.loads(node), "row"))
