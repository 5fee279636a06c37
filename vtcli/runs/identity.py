"""The identity of what a stage makes: what it was asked for, and the content of everything that it reads.

``docs/decisions/store.md`` says why each part is in it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtcli.judging.rubrics import prompts_folder
from vtcli.store.hashes import FileGroup, digests
from vtcli.store.sources import OWN, files_of, outside_code, source_digest, targets


@dataclass(frozen=True, slots=True)
class Identity:
    """Two runs with equal identities make the same artifact."""

    request: str  # sha256 over stage, kind, name, seed, configuration and the parents' contents
    files: Mapping[str, str] = field(default_factory=dict[str, str])  # outside of artifacts: name to sha256
    code: Mapping[str, str] = field(default_factory=dict[str, str])  # not ours: module to sha256, or to a version
    package: str = ""  # sha256 over our own source

    @property
    def fingerprint(self) -> str:
        """sha256 over all parts."""
        value = [self.request, sorted(self.files.items()), sorted(self.code.items()), self.package]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()

    @property
    def plain(self) -> dict[str, Any]:
        """Values for JSON."""
        return {"request": self.request, "files": dict(self.files), "code": dict(self.code), "package": self.package}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Identity:
        """The inverse of ``plain``; what is missing counts as empty."""
        get = value.get
        return cls(str(get("request", "")), get("files") or {}, get("code") or {}, str(get("package", "")))

    def changes(self, now: Identity) -> list[str]:
        """Lists the files and modules that differ in ``now``, by name. Our own package is excluded."""
        return [
            *_differences("the file", self.files, now.files),
            *_differences("the module", self.code, now.code),
        ]


def _differences(kind: str, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return [f"{kind} {name}" for name in names]


def identify(request: str, config: Mapping[str, Any], inputs: Mapping[str, Path | FileGroup], memory: Path) -> Identity:
    """The identity of a run that reads ``inputs`` under ``config``; ``memory`` as for ``digests``.

    Files that a plug point's values name are inputs, too.
    """
    named = {str(path): path for path in files_of(config)}
    return Identity(request, digests({**named, **inputs}, memory), outside_code(targets(config)), package_source())


def listed(changes: Sequence[str], most: int = 5) -> str:
    """Changes as a text, the first ones by name.

    >>> listed(["the file a", "the file b", "the file c"], most=2)
    'the file a, the file b and 1 more'
    """
    rest = len(changes) - most
    return ", ".join(changes[:most]) + (f" and {rest} more" if rest > 0 else "")


@functools.cache
def package_source() -> str:
    """sha256 over the source of this package and of the stages, in a checkout or installed, and the judge's rubrics."""
    specs = [spec for name in OWN if (spec := importlib.util.find_spec(name)) is not None]
    folders = [Path(place) for spec in specs for place in spec.submodule_search_locations or ()]
    return source_digest([*((folder, "*.py") for folder in folders), (prompts_folder(), "*.yaml")])
