"""Prints a slice of the release suite, chosen by a seed: the node ids of whole files' cells, a line a file.

    python .ci/slice.py SEED [MINUTES]

`.ci/run` gives the commit's hash, so that every cell of the release suite (marker `wide`) runs within days. A test
that takes longer than half a minute says so: `@pytest.mark.wide(minutes=3)`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import shlex
import sys
from collections import defaultdict

import pytest

MINUTES = 0.5  # of a test that says nothing


class Collected:
    """The items of the release suite, as pytest finds them."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keeps what was collected, but for tests that this machine would skip."""
        self.items = [item for item in session.items if not skipped(item)]


def skipped(item: pytest.Item) -> bool:
    """True where a `skip`, or a `skipif` whose condition is a value, leaves the test out."""
    return any(mark.name == "skip" or any(mark.args) for mark in item.iter_markers() if mark.name.startswith("skip"))


def minutes(item: pytest.Item) -> float:
    """How long a test takes, as its marker says."""
    mark = item.get_closest_marker("wide")
    return mark.kwargs.get("minutes", MINUTES) if mark else MINUTES


def chosen(items: list[pytest.Item], seed: str, limit: float) -> dict[str, list[str]]:
    """File -> node ids, in the order of a hash, for as long as their minutes fit into the limit."""
    files: dict[str, list[str]] = defaultdict(list)

    def turn(item: pytest.Item) -> float:
        """A draw in which a test of m minutes comes m times as early: else there is seldom room for it any more."""
        drawn = int(hashlib.sha256(f"{seed} {item.nodeid}".encode()).hexdigest(), 16)
        return -math.log((drawn + 1) / 2**256) / minutes(item)

    for item in sorted(items, key=turn):
        if minutes(item) <= limit:
            limit -= minutes(item)
            files[item.location[0]].append(item.nodeid)
    return files


if __name__ == "__main__":
    collected = Collected()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = pytest.main(["--collect-only", "-q", "-m", "wide and not harness", "tests"], plugins=[collected])
    if code or not collected.items:
        sys.exit(f"{output.getvalue()}\nnothing was collected: {code}")
    limit_minutes = float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
    for nodes in chosen(collected.items, sys.argv[1], limit_minutes).values():
        print(shlex.join(nodes))
