"""A default that stands in a stage's dataclass and in conf/config.yaml is the same in both."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from vtcli.config.binding import SECTION_OF, convert
from vtcli.sandbox.host.pool import PoolConfig

CONF: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "conf" / "config.yaml").read_text())
STAGES = ("synth", "sft", "rl", "eval", "judge")


def stated_twice(kind: type, section: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys with a default in the dataclass and a value in the section, with both; sections within it and what refers to
    other keys are left out."""
    hints, found = typing.get_type_hints(kind), dict[str, tuple[Any, Any]]()
    for field in dataclasses.fields(kind):
        value = section.get(field.name, dataclasses.MISSING)
        if value is dataclasses.MISSING or field.default is dataclasses.MISSING:
            continue
        if isinstance(value, dict) or (isinstance(value, str) and ("${" in value or value == "???")):
            continue
        found[field.name] = field.default, convert(value, hints[field.name], field.name)
    return found


@pytest.mark.parametrize("name", [*STAGES, "sandbox"])
def test_a_default_is_the_same_wherever_it_is_stated(name: str) -> None:
    module = None if name == "sandbox" else importlib.import_module(f"stages.{name}")
    kind = PoolConfig if module is None else module.Config
    both = stated_twice(kind, CONF.get(SECTION_OF.get(name, name), {}))
    differ = {key: values for key, values in both.items() if values[0] != values[1]}
    assert not differ, f"{name}: (dataclass, conf/config.yaml) differ: {differ}"


def test_a_difference_is_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        steps: int = 1
        name: str | None = None

    assert stated_twice(Config, {"steps": 2, "name": None}) == {"steps": (1, 2), "name": (None, None)}
