"""The identity of a stage's result: the request, and the content of everything that the run reads.

``docs/decisions/store.md`` has the reason for each part.
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
    """The identity of a run. Two runs with equal identities make the same artifact."""

    request: str  # sha256 over stage, kind, name, seed, configuration and the parents' contents
    files: Mapping[str, str] = field(default_factory=dict[str, str])  # outside of artifacts: name to sha256
    code: Mapping[str, str] = field(default_factory=dict[str, str])  # from outside: module to sha256 or version
    package: str = ""  # sha256 over our own source

    @property
    def fingerprint(self) -> str:
        """The sha256 over all parts."""
        value = [self.request, sorted(self.files.items()), sorted(self.code.items()), self.package]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()

    @property
    def plain(self) -> dict[str, Any]:
        """The identity as values for JSON."""
        return {"request": self.request, "files": dict(self.files), "code": dict(self.code), "package": self.package}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Identity:
        """Reads the value of ``plain``; missing parts count as empty."""
        # A manifest of an older version may lack parts: it then differs from every run of today, and is made again.
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
    """Returns the identity of a run that reads ``inputs`` under ``config``; ``memory`` as for ``digests``.

    Files that a plug point's values name are inputs too, because a changed file there changes the result.
    """
    named = {str(path): path for path in files_of(config)}
    return Identity(request, digests({**named, **inputs}, memory), outside_code(targets(config)), package_source())


def listed(changes: Sequence[str], most: int = 5) -> str:
    """Returns changes as a text that names the first ones.

    >>> listed(["the file a", "the file b", "the file c"], most=2)
    'the file a, the file b and 1 more'
    """
    rest = len(changes) - most
    return ", ".join(changes[:most]) + (f" and {rest} more" if rest > 0 else "")


@functools.cache
def package_source() -> str:
    """Returns the sha256 over the source of this package, of the stages, and of the judge's rubrics."""
    specs = [spec for name in OWN if (spec := importlib.util.find_spec(name)) is not None]
    folders = [Path(place) for spec in specs for place in spec.submodule_search_locations or ()]
    return source_digest([*((folder, "*.py") for folder in folders), (prompts_folder(), "*.yaml")])
