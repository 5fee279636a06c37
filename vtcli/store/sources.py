"""The source of what a result depends on: the package's own, and functions from outside that a configuration names."""

from __future__ import annotations

import ast
import errno
import functools
import hashlib
import importlib.metadata
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from vtcli.config.binding import TARGET

OWN = ("vtcli", "stages")
"""The packages whose source counts as a whole."""

OF_PACKAGES = ("site-packages", "dist-packages")
"""Names of folders of installed packages, also those of another prefix: a virtual environment that borrows the
system's, a module of a cluster. Their source would take a minute to read."""

WITHOUT_EFFECT = ("cli", "runbook")
"""Rooms that cannot change an artifact, because no stage may import them (import-linter checks it)."""


def targets(values: Any) -> Iterator[str]:
    """The dotted path of every plug point, nested ones included, and of every family of models from outside."""
    for node in _nodes(values):
        yield str(node[TARGET])
    families = cast("Mapping[str, Any]", values).get("families") if isinstance(values, Mapping) else None
    if isinstance(families, Mapping):
        yield from map(str, cast("Mapping[str, Any]", families).values())


def files_of(values: Any) -> Iterator[Path]:
    """Files that exist and that a plug point's own values name: a path holds a slash, or its name an ending."""
    for node in _nodes(values):
        for text in _texts({key: value for key, value in node.items() if key != TARGET}):
            looks_so = len(text) < 4096 and "\n" not in text and ("/" in text or Path(text).suffix)
            if looks_so and _is_file(text):
                yield Path(text)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # a prompt, say
            return False
        raise


def _nodes(values: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(values, Mapping):
        mapping = cast("Mapping[str, Any]", values)
        if TARGET in mapping:
            yield mapping
        for value in mapping.values():
            yield from _nodes(value)
    elif isinstance(values, list | tuple):
        for value in cast("Sequence[Any]", values):
            yield from _nodes(value)


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for value in cast("Mapping[str, Any]", values).values():
            yield from _texts(value)
    elif isinstance(values, list | tuple):
        for value in cast("Sequence[Any]", values):
            yield from _texts(value)


ROLLED = (
    *((room, "*.py") for room in ("rollout", "envs", "tools", "sandbox", "families", "engines")),
    ("data/teachers", "*.py"),  # the plans that the oracle plays
    *((".", name) for name in ("schema.py", "protocols.py", "geometry.py")),
    ("store", "images.py"),
)
"""The files of this package that a rollout comes from, by folder and pattern."""


@functools.cache
def rollout_source() -> str:
    """sha256 over the code that decides how a rollout goes on."""
    return source_digest([(_OURS / folder, pattern) for folder, pattern in ROLLED])


@functools.cache
def scoring_source() -> str:
    """sha256 over the code that measures a rollout: signals, scorers and judges."""
    return source_digest([(_OURS / room, "*.py") for room in ("signals", "judging")])


_OURS = Path(__file__).resolve().parents[1]


def source_digest(files: Iterable[tuple[Path, str]]) -> str:
    found = hashlib.sha256()
    for root, kind in files:
        for path in sorted(root.rglob(kind)):
            inside = path.relative_to(root)
            if inside.parts[0] not in WITHOUT_EFFECT:
                found.update(f"{root.name}/{inside.as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()


def outside_code(paths: Iterable[str]) -> dict[str, str]:
    """The source of functions that are not ours, by their dotted paths: module to sha256, an installed one's top
    package to its version.

    Modules are followed by their import statements, those inside functions too, through every folder of ``sys.path``
    that is not an installation. Not seen: imports by a computed name, extension modules, and files that the code opens.
    """
    roots, out = _roots(), dict[str, str]()
    waiting = deque(path.rpartition(".")[0] for path in paths)
    for top in {name.partition(".")[0] for name in waiting} - {*OWN, ""}:
        if not any(_file(top, root) or (root / top).is_dir() for root in roots):
            out |= _installed(top)
    while waiting:
        name = waiting.popleft()
        if name in out or name.partition(".")[0] in OWN:
            continue
        if (path := next((file for root in roots if (file := _file(name, root))), None)) is None:
            continue
        source = path.read_bytes()
        out[name] = hashlib.sha256(source).hexdigest()
        parents = name.split(".")[:-1]
        waiting += [".".join(parents[: n + 1]) for n in range(len(parents))]
        waiting += _imports(source, name if path.name == "__init__.py" else ".".join(parents))
    return dict(sorted(out.items()))


def _imports(source: bytes, package: str) -> list[str]:
    """Every name that may be a module: ``from a import b`` may mean the module ``a.b``."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*filter(None, base), *([node.module] if node.module else [])])
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return found


def _file(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    return next((path for path in (base / "__init__.py", base.with_name(f"{base.name}.py")) if path.is_file()), None)


def _roots() -> list[Path]:
    """Folders of ``sys.path`` that hold neither the standard library nor installed packages."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in kinds]
    folders = (Path(entry or ".").resolve() for entry in sys.path)
    return [
        folder
        for folder in dict.fromkeys(folders)
        if folder.is_dir()
        and folder.name not in OF_PACKAGES
        and not any(folder.is_relative_to(place) for place in installed)
    ]


def _installed(top: str) -> dict[str, str]:
    """The version of the distribution that a top-level package came with; nothing for the standard library."""
    if top in sys.stdlib_module_names:
        return {}
    names = importlib.metadata.packages_distributions().get(top, [top])
    try:
        return {top: importlib.metadata.version(names[0])}
    except importlib.metadata.PackageNotFoundError:
        return {}
