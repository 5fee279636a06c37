"""`vtcli sandbox` and the sandbox's line in `vtcli doctor`, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys

import confinement
import pytest
from cases import each_case

from vtcli.cli import findings
from vtcli.sandbox.confinement import attempts, probes
from vtcli.sandbox.confinement.kernel import SUPPORTED

needs_confinement = pytest.mark.skipif(not SUPPORTED, reason="confinement is written for Linux on x86-64")


def vtcli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vtcli.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@needs_confinement
def test_a_check_prints_every_attempt_and_what_the_tier_means() -> None:
    done = vtcli("sandbox", "check")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    states = {name: state for state, name, *_ in (line.split() for line in lines) if state in ("held", "open")}
    assert states.keys() >= attempts.ATTEMPTS.keys()
    tier = lines[-1].partition(":")[0].removeprefix("tier ")
    assert {states[name] for name in probes.REQUIRED[tier]} == {"held"}
    assert states["memory_total"] == "open", "no cgroup is used, on any machine"
    net = next(line for line in lines if line.startswith("held\tnet\t"))
    assert "seccomp" in net and "socket in every family" in net


@needs_confinement
def test_in_a_container_that_lets_nothing_through_the_check_fails_and_gives_the_remedy() -> None:
    code = "import sys; from vtcli.cli.main import main; sys.argv = ['vtcli', 'sandbox', 'check'{more}]; main()"
    done = confinement.script(code.format(more=""), "container", "no-landlock")
    assert done.returncode == 1, done.stdout + done.stderr
    *above, last = done.stdout.splitlines()
    assert last.startswith("weaker than landlock") and above[-1].startswith("tier seccomp")
    assert any(line.startswith("open\tfs_read\t") for line in above)
    assert any(line.startswith("not landlock: ") for line in above)
    assert any("needs Linux 5.13" in line for line in above)
    accepted = confinement.script(code.format(more=", '--minimum', 'seccomp'"), "container", "no-landlock")
    assert (accepted.returncode, accepted.stdout.splitlines()) == (0, above)


def test_a_machine_on_which_no_tier_holds_is_one_error() -> None:
    code = (
        "import sys; from vtcli.cli.main import main; from vtcli.sandbox.confinement import probes; "
        "probes._tried = lambda tier: {'error': 'no answer'}; sys.argv = ['vtcli', 'sandbox', 'check']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "no tier holds on this machine" in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_tier_is_a_users_mistake() -> None:
    done = vtcli("sandbox", "check", "--minimum", "nowhere")
    assert done.returncode == 2
    assert "landlock" in done.stderr


def test_the_command_line_loads_nothing_heavy_for_it() -> None:
    program = (
        "import sys, vtcli.cli.main; print([m for m in ('numpy', 'torch', 'cv2', 'vtcli.sandbox') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@needs_confinement
def test_the_doctor_says_what_holds() -> None:
    found = findings._sandbox()
    assert found.state == "ok"
    assert found.found.split()[0] in ("full", "landlock")


@each_case(
    ("program", "state", "found"),
    [
        ("print('seccomp', 'seccomp (net)', sep=chr(9))", "absent", "seccomp (net)"),
        ("print('landlock', 'landlock (fs)', sep=chr(9))", "ok", "landlock (fs)"),
        ("raise OSError('no such layer')", "broken", "OSError: no such layer"),
    ],
)
def test_the_doctor_takes_a_weak_tier_as_absent(
    monkeypatch: pytest.MonkeyPatch, program: str, state: str, found: str
) -> None:
    monkeypatch.setattr(findings, "SANDBOX", program)
    finding = findings._sandbox()
    assert (finding.state, finding.found) == (state, found)
    assert bool(finding.advice)
