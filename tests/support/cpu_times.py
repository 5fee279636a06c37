"""CPU seconds of each test, those of its child processes included: ``pytest -p cpu_times``, as a table by file.

``VTCLI_CPU_TIMES=FILE`` also appends a JSON line for each test, from every worker of pytest-xdist.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

SPENT: dict[str, list[float]] = defaultdict(list)


def seconds() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measures one test with the fixtures that are made for it."""
    before = seconds()
    result = yield
    spent = seconds() - before
    SPENT[item.location[0]].append(spent)
    if file := os.environ.get("VTCLI_CPU_TIMES"):
        with Path(file).open("a") as out:
            out.write(json.dumps({"test": item.nodeid, "cpu_s": round(spent, 2)}) + "\n")
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the twenty files that cost most."""
    if SPENT:
        terminalreporter.section("CPU seconds by file")
        for file, spent in sorted(SPENT.items(), key=lambda each: -sum(each[1]))[:20]:
            terminalreporter.write_line(f"{sum(spent):8.1f}  {len(spent):4}  {file}")
