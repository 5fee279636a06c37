"""All cases, and their choice by name."""

from __future__ import annotations

from fnmatch import fnmatch

from . import (
    claims,
    deaths,
    files,
    forge,
    forks,
    hangs,
    isolation,
    kernel,
    malformed,
    memory,
    network,
    output,
    poison,
    processes,
    undone,
    writes,
)
from .case import Attack

CASES: tuple[Attack, ...] = (
    *files.READING,
    *writes.CASES,
    *undone.CASES,
    *network.CASES,
    *kernel.CASES,
    *processes.CASES,
    *deaths.CASES,
    *hangs.CASES,
    *memory.CASES,
    *output.CASES,
    *malformed.CASES,
    *forge.CASES,
    *claims.CASES,
    *poison.CASES,
    *forks.CASES,
    *isolation.CASES,
)

FAMILIES = {
    "fs": "files of the host",
    "net": "network",
    "sys": "the kernel's doors",
    "proc": "processes and signals",
    "hang": "code that does not end",
    "mem": "memory",
    "out": "output, errors, images",
    "forge": "replies and claims",
    "poison": "the interpreter",
    "iso": "between runs and episodes",
}


def chosen(patterns: tuple[str, ...] = ()) -> tuple[Attack, ...]:
    """The cases whose name matches one of ``patterns`` (``fs``, ``net.*``, ``proc.fork``); all, without any.

    Raises:
        ValueError: a pattern matches nothing.
    """
    for pattern in patterns:
        if not any(_matches(c, pattern) for c in CASES):
            raise ValueError(f"no attack is called {pattern!r}; families: {', '.join(FAMILIES)}.")
    return tuple(c for c in CASES if not patterns or any(_matches(c, p) for p in patterns))


def _matches(case: Attack, pattern: str) -> bool:
    return fnmatch(case.name, pattern) or case.name.split(".")[0] == pattern
