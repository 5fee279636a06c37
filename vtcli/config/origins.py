"""Origins: the file and line that set each value of a composed configuration, computed on demand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import yaml

from vtcli.config.binding import AGENT
from vtcli.config.defaults import NAME, stated


class Default(Protocol):
    """One entry of Hydra's defaults list."""

    config_path: str | None
    package: str | None


class Origins(Mapping[str, str]):
    """The place that set each dotted leaf; reads no file before the first look."""

    def __init__(self, leaves: Iterable[str], set_by: Callable[[], Mapping[str, str]]) -> None:
        self._leaves, self._set_by = tuple(leaves), set_by

    @functools.cached_property
    def _found(self) -> dict[str, str]:
        set_by = self._set_by()
        return {leaf: _nearest_setter(leaf, set_by) for leaf in self._leaves}

    def __getitem__(self, leaf: str) -> str:
        return self._found[leaf]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)


def set_by_files(defaults: Sequence[Default], folders: Sequence[Path], own: Path) -> dict[str, str]:
    """Returns ``conf/file:line`` for each key that a file sets, by replaying Hydra's defaults list in order. ``own`` is
    the folder to show as ``conf``."""
    set_by: dict[str, str] = {}
    for default in defaults:
        if default.config_path == NAME:
            set_by |= {key: place for key, (_, place) in stated().items()}
            continue
        found = [p for f in folders if (p := f / f"{default.config_path}.yaml").is_file()]
        # Hydra's own settings are no values of ours.
        if not found or (default.package or "").startswith("hydra"):
            continue
        shown = f"conf/{default.config_path}.yaml" if found[0].is_relative_to(own) else str(found[0])
        root = yaml.compose(found[0].read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for key, line, replaces in _lines(root, default.package or ""):
            # A list is replaced as a whole, so the lines of the former items no longer hold.
            if replaces:
                drop_below(set_by, key)
            set_by[key] = f"{shown}:{line}"
    return set_by


def drop_below(set_by: dict[str, str], key: str) -> None:
    """Drops the places of a list's items when another list replaces it."""
    for below in [name for name in set_by if name.startswith(f"{key}.")]:
        del set_by[below]


def _lines(node: yaml.Node | None, where: str) -> Generator[tuple[str, int, bool]]:
    """Yields dotted key, line, and whether the value replaces the earlier one (a list, a reference) or merges with
    it."""
    children: list[tuple[str, int, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, key.start_mark.line + 1, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(i), value.start_mark.line + 1, value) for i, value in enumerate(node.value)]
    for name, line, value in children:
        if where or name not in ("defaults", "hydra"):
            here = f"{where}.{name}" if where else name
            refers = isinstance(value, yaml.ScalarNode) and "${" in value.value
            yield here, line, refers or isinstance(value, yaml.SequenceNode)
            yield from _lines(value, here)


def _nearest_setter(leaf: str, set_by: Mapping[str, str]) -> str:
    """Returns the place that set a leaf or a section around it. A stage's agent inherits from ``agent``."""
    own = _holder(leaf, set_by)
    _, of_agent, rest = leaf.partition(f".{AGENT}.")
    if of_agent:
        shared = _holder(f"{AGENT}.{rest}", set_by)
        if shared.count(".") + 1 > own.count("."):  # the longer match wins; the stage's name in ``own`` does not count
            own = shared
    return set_by.get(own, "?")


def _holder(leaf: str, set_by: Mapping[str, str]) -> str:
    """Returns the longest beginning of a dotted key that some place sets, or ""."""
    parts = leaf.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((name for name in names if name in set_by), "")
