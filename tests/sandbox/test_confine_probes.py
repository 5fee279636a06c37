"""The tier is decided by doing: in a container's filter, without Landlock, as another user; and the report says so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import confinement
import pytest

from vtcli.sandbox.confinement import attempts, probes
from vtcli.sandbox.confinement.kernel import SUPPORTED, ConfinementError
from vtcli.sandbox.types import TIERS

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="confinement is written for Linux on x86-64")

REPORT = """
import json
from dataclasses import asdict
from vtcli.sandbox.confinement import probes
print(json.dumps(asdict(probes.strongest({minimum!r}))))
"""


def report_of(*starter: str, minimum: str = "none") -> dict:
    done = confinement.script(REPORT.format(minimum=minimum), *starter)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def states(report: dict) -> dict[str, str]:
    return {layer["name"]: layer["state"] for layer in report["layers"]}


def test_a_probe_starts_without_numpy() -> None:
    code = "import sys\nfrom vtcli.sandbox.confinement import probing\nassert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_report_is_proved_and_json_able() -> None:
    report = probes.strongest("none")
    assert json.loads(json.dumps(asdict(report)))["tier"] == report.tier
    active = {layer.name for layer in report.layers if layer.state == "active"}
    assert set(probes.REQUIRED[report.tier]) <= active
    assert {layer.state for layer in report.layers if layer.name == "memory_total"} == {"absent"}
    assert report.line().startswith(f"{report.tier} (")
    assert [tier for tier, _ in report.refused] == list(TIERS[: TIERS.index(report.tier)])


def test_the_probes_are_quick() -> None:
    began = time.monotonic()
    probes.strongest("none")
    assert time.monotonic() - began < 5  # one second on a quiet machine


@pytest.mark.parametrize("user", [(), ("user",)], ids=["as we are", "user"])
def test_in_a_container_that_refuses_namespaces_the_tier_is_landlock(user: tuple[str, ...]) -> None:
    if user and not confinement.can_become_user():
        pytest.skip("needs root that may mount")
    report = report_of(*user, "container")
    if report["landlock_abi"] == 0:
        pytest.skip("this kernel has no Landlock")
    assert report["tier"] == "landlock"
    assert report["refused"][0][0] == "full"
    # Where Python lives decides which is tried first.
    forbidden = r"namespaces: unshare \(.+\): |private root: /\S+ cannot be mounted: "
    assert re.fullmatch(rf"(?:{forbidden})Operation not permitted", report["refused"][0][1])
    found = states(report)
    assert found["fs_read"] == found["net"] == found["fork"] == found["threads"] == "active"
    assert found["fs_stat"] == found["disk"] == found["process_ids"] == "absent"


def test_without_landlock_and_namespaces_it_refuses_to_start_unless_an_outer_boundary_is_declared() -> None:
    done = confinement.script(REPORT.format(minimum="landlock"), "container", "no-landlock")
    assert done.returncode == 1
    last = done.stderr[done.stderr.index("ConfinementError") :]
    assert "the strongest that holds here is seccomp, and at least landlock is asked for" in last
    assert "Linux 5.13" in last
    report = report_of("container", "no-landlock", minimum="seccomp")
    assert (report["tier"], states(report)["fs_read"], states(report)["exec"]) == ("seccomp", "waived", "active")


def test_an_ordinary_user_gets_the_tier_that_root_gets() -> None:
    if not confinement.can_become_user():
        pytest.skip("needs root that may mount")
    mine, theirs = probes.strongest("none"), report_of("user")
    assert theirs["tier"] == mine.tier


def test_a_layer_that_leaks_is_not_called_active(monkeypatch: pytest.MonkeyPatch) -> None:
    leaky = {"layers": [[name, None, "x", "y"] for name in probes.REQUIRED["full"]]}
    leaky["layers"][0][1] = "it worked"
    none = {"layers": [[name, None, "x", "y"] for name in probes.REQUIRED["none"]]}
    answers = {"full": leaky, "landlock": {"error": "no"}, "seccomp": {"layers": []}, "none": none}
    monkeypatch.setattr(probes, "_tried", lambda tier: answers[tier])
    report = probes.strongest("none")
    assert report.tier == "none"
    assert report.refused[0] == ("full", "fs_read: it worked")
    assert "net: not tried" in report.refused[2][1]
    with pytest.raises(ConfinementError, match="at least seccomp is asked for"):
        probes.strongest("seccomp")


def test_the_attempts_notice_when_nothing_stops_them(tmp_path: Path) -> None:
    """Run without confinement, in a process of its own: each of these must say that it got through."""
    canary = tmp_path / "canary"
    canary.touch()
    code = f"""
import json, os
from vtcli.sandbox.confinement import attempts
os.chdir({str(tmp_path)!r})
ground = attempts.Ground({str(canary)!r}, os.getpid(), os.getpid())
found = []
for name in {["fs_read", "fs_stat", "fs_write", "net", "exec", "fork", "signal", "channels", "memory", "open_files"]!r}:
    try:
        attempts.ATTEMPTS[name][0](ground)
    except attempts.GotThrough:
        found.append(name)
print(json.dumps(found))
"""
    done = confinement.script(code)
    assert json.loads(done.stdout) == [
        "fs_read", "fs_stat", "fs_write", "net", "exec", "fork", "signal", "channels", "memory", "open_files",
    ], done.stderr  # fmt: skip
    assert all(attempt.__doc__ for attempt, _, _ in attempts.ATTEMPTS.values())


FAMILY = """
import os, sys, time, signal
import confinement
from vtcli.sandbox.confinement import confine
state = confine.prepare_template("full")
confine.prepare_fork(state)
if os.fork() == 0:
    confine.enter_guard(state, confinement.LIMITS)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
    print("alive", flush=True)
    time.sleep(300)
{end}
"""


def start_family(end: str) -> subprocess.Popen[str]:
    code = f"import sys; sys.path.append({str(Path(confinement.__file__).parent)!r})\n" + FAMILY.format(end=end)
    return subprocess.Popen([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True)


def full_holds() -> bool:
    return probes.strongest("none").tier == "full"


def test_when_the_template_is_killed_the_kernel_kills_everything_below() -> None:
    if not full_holds():
        pytest.skip("needs namespaces")
    family = start_family("time.sleep(300)")
    assert family.stdout is not None
    assert [family.stdout.readline(), family.stdout.readline()] == ["alive\n", "alive\n"]
    os.kill(family.pid, signal.SIGKILL)
    assert family.stdout.read() == ""  # ends when the last holder of the pipe is gone
    assert family.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(("end", "code"), [("os._exit(7)", 7), ("sys.exit(0)", 0)])
def test_the_process_outside_ends_as_the_template_ends(end: str, code: int) -> None:
    if not full_holds():
        pytest.skip("needs namespaces")
    family = start_family(f"time.sleep(0.3); {end}")
    assert family.wait(20) == code
    assert family.stdout is not None
    family.stdout.read()
