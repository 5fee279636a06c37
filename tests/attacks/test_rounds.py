"""Every abuse case, at each tier that this machine can show, as the user who runs the tests and as an ordinary one.

A round runs in a process of its own, once; each case is then a test. At tier none the cases that do no lasting harm
must get through: a suite that finds nothing there could find nothing anywhere.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import confinement
import pytest

from vtcli.attacks import suite
from vtcli.attacks.case import Attack
from vtcli.sandbox.confinement.kernel import MACHINE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MACHINE != "x86_64", reason="the attacks make system calls by x86-64's numbers"),
]

ROUND_S = 1500
MOST = ("fs", "net", "sys", "proc", "poison", "iso")
NO_FILES = ("net", "sys", "proc", "hang", "forge", "poison")  # at tier seccomp the host's files are open to all
ROUNDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # name: how it is started, options, cases
    "full": ((), ("--tier", "full"), ()),
    "full-user": (("user",), ("--tier", "full"), MOST),
    "landlock-user": (("user",), ("--container",), ()),
    "landlock-root": ((), ("--container",), MOST),
    "seccomp-user": (("user",), ("--tier", "seccomp"), NO_FILES),
    "none-user": (("user",), ("--tier", "none"), ()),
}


@functools.cache
def findings(name: str) -> dict[str, dict[str, object]]:
    """Attack -> what was found, of one round."""
    starter, options, cases = ROUNDS[name]
    if starter and os.geteuid() != 0:
        starter = ()  # an ordinary user already
    elif starter and not confinement.can_become_user():
        pytest.skip("no ordinary user can be had here")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        file = Path(folder, "found.json")
        arguments = [*cases, *options, "--json", str(file)]
        code = f"import sys; from vtcli.attacks.__main__ import main; sys.exit(main({arguments!r}))"
        command = [sys.executable, "-I", confinement.__file__, *starter, "script", code]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ROUND_S, check=False, cwd="/", env={"HOME": "/nonexistent"}
        )
        assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
        found = json.loads(file.read_text())
    expected = name.partition("-")[0]
    assert found["sandbox"]["tier"] == expected
    return {f["case"]: f for f in found["findings"]}


def items(name: str) -> list[Attack]:
    return list(suite.chosen(ROUNDS[name][2]))


MARKS: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    "full": (),
    "full-user": (pytest.mark.rounds, pytest.mark.wide),
    "landlock-root": (pytest.mark.rounds, pytest.mark.wide),
}
"""`make test-slow` has the strongest tier as whoever runs it, `make test-sandbox` one round for each other tier.
`make test-wide` has two tiers again as the other user."""
HELD = [
    pytest.param(name, case.name, id=f"{name}-{case.name}", marks=MARKS.get(name, pytest.mark.rounds))
    for name in ROUNDS
    if name != "none-user"
    for case in items(name)
]
TRIED = [pytest.param(n, marks=MARKS.get(n, pytest.mark.rounds)) for n in ROUNDS if n != "none-user"]
BITES = [case.name for case in suite.CASES if case.bites]


@pytest.mark.parametrize(("name", "case"), HELD)
def test_the_attack_is_held(name: str, case: str) -> None:
    found = findings(name)[case]
    assert found["verdict"] in ("held", "gap"), (found["status"], found["why"])


@pytest.mark.parametrize("name", TRIED)
def test_the_host_keeps_no_descriptors(name: str) -> None:
    assert findings(name)["host.descriptors"]["verdict"] == "held"


@pytest.mark.parametrize("case", BITES)
def test_the_attack_gets_through_where_nothing_holds_it(case: str) -> None:
    found = findings("none-user")[case]
    assert found["verdict"] == "BROKEN", found


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
