"""Every attack, at each tier that this machine can show, as the user who runs the tests and as an ordinary one.

A round runs in a process of its own and is one test, which lists what was not held. A push has the strongest tier as
whoever runs it, the release suite the others. At tier none the cases that do no lasting harm must get through: a suite
that finds nothing there could find nothing anywhere.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confinement
import pytest

from vtcli.sandbox.confinement.kernel import MACHINE

from . import suite

pytestmark = pytest.mark.skipif(MACHINE != "x86_64", reason="the attacks make system calls by x86-64's numbers")

ROUND_S = 1500
TESTS = Path(__file__).parents[1]
MOST = ("fs", "net", "sys", "proc", "poison", "iso")
NO_FILES = ("net", "sys", "proc", "hang", "forge", "poison")  # at tier seccomp the host's files are open to all


@dataclass(frozen=True)
class Round:
    tier: str
    starter: tuple[str, ...]
    chosen: tuple[str, ...] = ()  # all
    asked: str = ""  # for the tier that is expected; "strongest": in a container that is found by trying


PUSH = Round("full", ())
RELEASE = {
    "full-user": Round("full", ("user",), MOST),
    "landlock-user": Round("landlock", ("user", "container"), asked="strongest"),
    "landlock-root": Round("landlock", ("container",), MOST, asked="strongest"),
    "seccomp-user": Round("seccomp", ("user",), NO_FILES),
}
OPEN = Round("none", ("user",))
WIDE = pytest.mark.wide(minutes=2)
BITES = [case.name for case in suite.CASES if case.bites]

ATTACK = f"""
import os, runpy, sys
os.chdir("/")
os.environ["HOME"] = "/nonexistent"
sys.path += {[str(TESTS), str(TESTS / "support")]!r}
sys.argv[1:] = {{arguments!r}}
runpy.run_module("attacks.rounds", run_name="__main__")
"""


def findings(tried: Round) -> dict[str, dict[str, Any]]:
    """Runs a round. Returns what was found of each attack."""
    starter = tried.starter
    if "user" in starter:
        if os.geteuid() != 0:  # an ordinary user already
            starter = tuple(word for word in starter if word != "user")
        elif not confinement.can_become_user():
            pytest.skip("no ordinary user can be had here")
    code = ATTACK.format(arguments=[tried.asked or tried.tier, *tried.chosen])
    done = confinement.script(code, *starter, timeout=ROUND_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    first, *found = map(json.loads, done.stdout.splitlines())
    assert first["sandbox"]["tier"] == tried.tier
    return {each["case"]: each for each in found}


def table(found: dict[str, dict[str, Any]], wrong: list[str]) -> str:
    return "\n".join(
        f"{name}: {found[name]['verdict']}, {found[name]['status']}, {found[name]['why']}" for name in wrong
    )


@pytest.mark.slow
@pytest.mark.parametrize("tried", [PUSH, *(pytest.param(r, id=name, marks=WIDE) for name, r in RELEASE.items())])
def test_every_attack_is_held(tried: Round) -> None:
    found = findings(tried)
    expected = {case.name for case in suite.chosen(tried.chosen)} | {"host.descriptors"}
    assert found.keys() == expected
    wrong = [name for name, each in found.items() if each["verdict"] not in ("held", "gap")]
    assert not wrong, table(found, wrong)
    assert found["host.descriptors"]["verdict"] == "held"


def test_a_round_tells_what_holds_from_what_does_not() -> None:
    """The two rounds below in small, for everybody who changes the sandbox."""
    held, broken = findings(Round("full", (), ("net.tcp",))), findings(Round("none", (), ("net.tcp",)))
    assert [held[name]["verdict"] for name in ("net.tcp", "host.descriptors")] == ["held", "held"]
    assert broken["net.tcp"]["verdict"] == "BROKEN"
    assert "outside: the host's tcp listener was reached" in broken["net.tcp"]["why"]


@pytest.mark.slow
@WIDE
def test_attacks_get_through_where_nothing_holds_them() -> None:
    found = findings(OPEN)
    wrong = [name for name in BITES if found[name]["verdict"] != "BROKEN"]
    assert not wrong, table(found, wrong)


def test_the_suite_is_large_and_most_of_what_can_be_tried_without_isolation_bites() -> None:
    assert len(suite.CASES) >= 280
    assert len(BITES) >= 50
    assert {c.split(".")[0] for c in BITES} >= {"fs", "net", "sys", "proc", "iso", "poison"}


def test_tier_full_has_no_gap_and_every_other_gap_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert [c.name for c in suite.CASES if "full" in c.gaps] == []
    for case in suite.CASES:
        for tier, gap in case.gaps.items():
            assert gap in page, f"{case.name} at {tier}: {gap!r} is not in docs/reliability.md"
            assert case.name in page, f"{case.name} has a gap at {tier} and is not named in docs/reliability.md"
