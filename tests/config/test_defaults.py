"""A default that stands in a stage's dataclass and in conf/config.yaml is the same in both."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from cases import each_case

from vtcli.algo.losses import LossConfig
from vtcli.algo.optim import Optim
from vtcli.algo.select import filter_and_rank
from vtcli.config.binding import AGENT, SECTION_OF, TARGET, bind, convert
from vtcli.data.importers import rows
from vtcli.engines.policies import Engine
from vtcli.errors import ConfigError
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.session.agent import Agent

CONF_FOLDER = Path(__file__).parents[2] / "conf"
CONF: dict[str, Any] = yaml.safe_load((CONF_FOLDER / "config.yaml").read_text())
STAGES = ("synth", "filter", "sft", "rl", "eval", "judge", "serve")


CHOSEN = (Optim,)
"""Types whose defaults are those of a choice of conf/ (``test_a_choice_…``), from which a stage's section departs."""


def stated_twice(kind: type, section: dict[str, Any], whole: Any = None) -> dict[str, tuple[Any, Any]]:
    """Keys with a default in the dataclass and a value in the section, with both, also in sections within it. What
    refers to other keys is left out."""
    hints, found = typing.get_type_hints(kind), dict[str, tuple[Any, Any]]()
    for field in dataclasses.fields(kind):
        if field.name == AGENT:  # holds what differs in the stage
            continue
        value = section.get(field.name, dataclasses.MISSING)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        hint = hints[field.name]
        if default is dataclasses.MISSING and isinstance(value, dict) and hint not in CHOSEN:
            default = hint if dataclasses.is_dataclass(hint) else default  # its own keys have some
        if value is dataclasses.MISSING or default is dataclasses.MISSING:
            continue
        if isinstance(value, str) and ("${" in value or value == "???"):
            continue
        if isinstance(value, dict) and dataclasses.is_dataclass(default):
            inner = stated_twice(hint, value) if default is hint else stated_twice(type(default), value, default)
            found |= {f"{field.name}.{key}": pair for key, pair in inner.items()}
        else:
            found[field.name] = getattr(whole, field.name, default), convert(value, hints[field.name], field.name)
    return found


@each_case("name", [*STAGES, "sandbox", AGENT])
def test_a_default_is_the_same_wherever_it_is_stated(name: str) -> None:
    kind = {"sandbox": PoolConfig, AGENT: Agent}.get(name) or importlib.import_module(f"stages.{name}").Config
    both = stated_twice(kind, CONF.get(SECTION_OF.get(name, name), {}))
    differ = {key: values for key, values in both.items() if values[0] != values[1]}
    assert not differ, f"{name}: (dataclass, conf/config.yaml) differ: {differ}"


def test_a_difference_is_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        steps: int = 1
        name: str | None = None

    assert stated_twice(Config, {"steps": 2, "name": None}) == {"steps": (1, 2), "name": (None, None)}


def test_a_difference_in_a_section_is_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        pool: PoolConfig = dataclasses.field(default_factory=lambda: PoolConfig(live=7))

    assert stated_twice(Config, {"pool": {"live": 4}}) == {"pool.live": (7, 4)}


OWN = ("name", "sleep", "gpu_memory")
"""Keys that each engine's file decides: vLLM alone sleeps, and has most of a GPU while it is awake."""


@each_case(
    ("file", "kind"),
    [("engine/hf", Engine), ("engine/vllm", Engine), ("loss/grpo", LossConfig), ("optim/adamw", Optim)],
)
def test_a_choice_that_is_the_default_says_what_the_dataclass_says(file: str, kind: type) -> None:
    both = stated_twice(kind, yaml.safe_load((CONF_FOLDER / f"{file}.yaml").read_text()))
    differ = {key: values for key, values in both.items() if values[0] != values[1] and key not in OWN}
    assert len(both) > 1 and not differ, f"{file}: (dataclass, file) differ: {differ}"


def targets(value: Any) -> Iterator[dict[str, Any]]:
    """The nodes of a file that name a function, nested ones included."""
    if isinstance(value, dict):
        if TARGET in value:
            yield value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from targets(inner)


FILES = sorted(str(path.relative_to(CONF_FOLDER)) for path in CONF_FOLDER.rglob("*.yaml"))


def faults(nodes: Iterator[dict[str, Any]]) -> list[str]:
    """Keywords of nodes that their function does not have, and ways to read rows that there are not."""
    found: list[str] = []
    for node in nodes:
        keywords = {key: value for key, value in node.items() if key not in (TARGET, "defaults")}  # Hydra's
        module, _, name = node[TARGET].rpartition(".")
        try:
            inspect.signature(getattr(importlib.import_module(module), name)).bind_partial(**keywords)
            if module == rows.__name__:
                rows.check_spelling(*(keywords.get(key) for key in ("row", "columns", "reading")))
        except (TypeError, ConfigError) as problem:
            found.append(f"{node[TARGET]}: {problem}")
    return found


def test_every_keyword_of_a_node_is_a_parameter_of_its_function() -> None:
    nodes = {file: list(targets(yaml.safe_load((CONF_FOLDER / file).read_text()))) for file in FILES}
    assert sum(map(len, nodes.values())) > 150
    assert {file: wrong for file, found in nodes.items() if (wrong := faults(iter(found)))} == {}


@each_case("given", [{"preset": "verl"}, {"row": "verll"}, {"columns": {"qestion": "q"}}, {"reading": {"takes": {}}}])
def test_a_keyword_that_there_is_not_is_found(given: dict[str, Any]) -> None:
    node = {TARGET: "vtcli.data.importers.rows.generate", "path": "x", "name": "own", **given}
    assert len(faults(targets({"tasks": [{"generate": node}]}))) == 1


def test_the_default_selection_is_the_functions_own() -> None:
    node = yaml.safe_load((CONF_FOLDER / "select" / "filter_and_rank.yaml").read_text())
    own = {
        name: p.default for name, p in inspect.signature(filter_and_rank).parameters.items() if p.kind is p.KEYWORD_ONLY
    }
    assert bind(node).keywords == own
