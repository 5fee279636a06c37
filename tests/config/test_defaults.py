"""Every default of the configuration stands once: in a dataclass, or in a file of conf/."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from cases import each_case

from vtcli.algo.select import filter_and_rank
from vtcli.config import compose, defaults
from vtcli.config.binding import AGENT, TARGET, WHOLE, bind, convert
from vtcli.data.importers import rows
from vtcli.engines.policies import Engine
from vtcli.errors import ConfigError

CONF_FOLDER = Path(__file__).parents[2] / "conf"
CARDS = ("recipe", "scale", "variant", "runbook")
"""Folders whose files say what a paper, a size or an experiment has, also where that is the default."""


def held(values: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """The plain leaves of a dataclass's defaults as YAML would hold them."""
    for name, value in values.items():
        key = f"{where}.{name}"
        if dataclasses.is_dataclass(value):
            yield from held({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, key)
        elif not callable(value) and value is not dataclasses.MISSING:
            yield key, list(value) if isinstance(value, tuple) else value


def of_class(kind: type, where: str) -> dict[str, Any]:
    """The defaults of an imported dataclass by dotted key, without what stages take from the top level."""
    left = (AGENT, WHOLE, *(defaults.SHARED if "." not in where else ()))
    fields = [field for field in dataclasses.fields(kind) if field.name not in left]
    made = {f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory() for f in fields}
    return dict(held(made, where))


def test_the_source_is_read_as_python_reads_it() -> None:
    found = {key: value for key, (value, _) in defaults.stated().items()}
    for section, (module, name) in defaults.SECTIONS.items():
        imported = of_class(getattr(importlib.import_module(module), name), section)
        for key in ("sandbox.active", defaults.OPEN):  # the cores of this machine; given by a scale
            imported.pop(key, None)
        read = {key: value for key, value in found.items() if f"{key}.".startswith(f"{section}.")}
        assert {key: repr(value) for key, value in read.items()} == {key: repr(v) for key, v in imported.items()}


def test_the_place_of_a_default_is_the_line_of_its_field() -> None:
    for key, (_, place) in defaults.stated().items():
        file, line = place.rsplit(":", 1)
        text = (CONF_FOLDER.parent / file).read_text().splitlines()[int(line) - 1]
        names = "|".join(key.split(".")[-2:])  # the field of the section, where that gives other arguments
        assert re.match(rf"    ({names}): ", text), (key, place, text)


def stated_again(text: str, files: dict[str, Any]) -> list[str]:
    """Keys of a file's text that a dataclass states with the same value."""
    package = re.match(r"# @package ([\w.]+)\n", text)
    leaves = compose.flat(files, package[1] if package and package[1] != "_global_" else "")
    known = defaults.stated()
    lists = {key.rpartition(".")[0] for key in leaves if key.rpartition(".")[2].isdigit()}
    found = [key for key, value in leaves.items() if key in known and known[key][0] == value]
    return found + [key for key in lists if key in known]


def test_no_default_stands_twice() -> None:
    files = [file for file in CONF_FOLDER.rglob("*.yaml") if file.relative_to(CONF_FOLDER).parts[0] not in CARDS]
    again = {str(file): stated_again(file.read_text(), yaml.safe_load(file.read_text()) or {}) for file in files}
    assert len(files) > 60 and {file: keys for file, keys in again.items() if keys} == {}


def test_a_default_that_stands_twice_is_found() -> None:
    assert stated_again("", {"rl": {"checkpoint_keep": 2}, "sft": {"epochs": 1.0}}) == ["rl.checkpoint_keep"]
    assert stated_again("# @package rl.loss\n", {"kl": "k3", "clip_low": 0.3}) == ["rl.loss.kl"]


OWN = ("name", "sleep", "gpu_memory")
"""Keys that each engine's file decides: vLLM alone sleeps, and has most of a GPU while it is awake."""


@each_case("name", ["hf", "vllm", "vllm_server"])
def test_an_engine_lists_its_own_keys_with_the_values_of_the_dataclass(name: str) -> None:
    """The one exception: the dataclass has the fields of all engines, and a file the keys that its engine reads."""
    hints, plain = typing.get_type_hints(Engine), Engine()
    values = yaml.safe_load((CONF_FOLDER / "engine" / f"{name}.yaml").read_text())
    shared = {key: convert(value, hints[key], key) for key, value in values.items() if key not in OWN}
    assert shared and shared == {key: getattr(plain, key) for key in shared}


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
