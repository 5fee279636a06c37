"""Every abuse case, at each tier that this machine can show, as the user who runs the tests and as an ordinary one.

A round runs in a process of its own and is one test, which lists what was not held. A push has the strongest tier as
whoever runs it, the release suite the others. At tier none the cases that do no lasting harm must get through: a suite
that finds nothing there could find nothing anywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confinement
import pytest

from vtcli.attacks import suite
from vtcli.sandbox.confinement.kernel import MACHINE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MACHINE != "x86_64", reason="the attacks make system calls by x86-64's numbers"),
]

ROUND_S = 1500
MOST = ("fs", "net", "sys", "proc", "poison", "iso")
NO_FILES = ("net", "sys", "proc", "hang", "forge", "poison")  # at tier seccomp the host's files are open to all


@dataclass(frozen=True)
class Round:
    tier: str
    starter: tuple[str, ...]
    options: tuple[str, ...]
    cases: tuple[str, ...] = ()  # all


PUSH = Round("full", (), ("--tier", "full"))
RELEASE = {
    "full-user": Round("full", ("user",), ("--tier", "full"), MOST),
    "landlock-user": Round("landlock", ("user",), ("--container",)),
    "landlock-root": Round("landlock", (), ("--container",), MOST),
    "seccomp-user": Round("seccomp", ("user",), ("--tier", "seccomp"), NO_FILES),
}
OPEN = Round("none", ("user",), ("--tier", "none"))
WIDE = pytest.mark.wide(minutes=2)
BITES = [case.name for case in suite.CASES if case.bites]


def findings(tried: Round) -> dict[str, dict[str, Any]]:
    """Runs a round. Returns what was found of each attack."""
    starter = tried.starter
    if starter and os.geteuid() != 0:
        starter = ()  # an ordinary user already
    elif starter and not confinement.can_become_user():
        pytest.skip("no ordinary user can be had here")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        file = Path(folder, "found.json")
        arguments = [*tried.cases, *tried.options, "--json", str(file)]
        code = f"import sys; from vtcli.attacks.__main__ import main; sys.exit(main({arguments!r}))"
        command = [sys.executable, "-I", confinement.__file__, *starter, "script", code]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ROUND_S, check=False, cwd="/", env={"HOME": "/nonexistent"}
        )
        assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
        found = json.loads(file.read_text())
    assert found["sandbox"]["tier"] == tried.tier
    return {f["case"]: f for f in found["findings"]}


def table(found: dict[str, dict[str, Any]], wrong: list[str]) -> str:
    return "\n".join(
        f"{name}: {found[name]['verdict']}, {found[name]['status']}, {found[name]['why']}" for name in wrong
    )


@pytest.mark.parametrize("tried", [PUSH, *(pytest.param(r, id=name, marks=WIDE) for name, r in RELEASE.items())])
def test_every_attack_is_held(tried: Round) -> None:
    found = findings(tried)
    expected = {case.name for case in suite.chosen(tried.cases)} | {"host.descriptors"}
    assert found.keys() == expected
    wrong = [name for name, each in found.items() if each["verdict"] not in ("held", "gap")]
    assert not wrong, table(found, wrong)
    assert found["host.descriptors"]["verdict"] == "held"


@WIDE
def test_attacks_get_through_where_nothing_holds_them() -> None:
    found = findings(OPEN)
    wrong = [name for name in BITES if found[name]["verdict"] != "BROKEN"]
    assert not wrong, table(found, wrong)


def test_the_suite_is_large_and_most_of_what_can_be_tried_without_isolation_bites() -> None:
    assert len(suite.CASES) >= 130
    assert len(BITES) >= 50
    assert {c.split(".")[0] for c in BITES} >= {"fs", "net", "sys", "proc", "iso", "poison"}


def test_tier_full_has_no_gap_and_every_other_gap_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert [c.name for c in suite.CASES if "full" in c.gaps] == []
    for case in suite.CASES:
        for tier, gap in case.gaps.items():
            assert gap in page, f"{case.name} at {tier}: {gap!r} is not in docs/reliability.md"
            assert case.name in page, f"{case.name} has a gap at {tier} and is not named in docs/reliability.md"
