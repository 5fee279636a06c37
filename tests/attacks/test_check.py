"""`vtcli sandbox` and the sandbox's line in `vtcli doctor`, run as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vtcli.cli import findings
from vtcli.sandbox.confinement.kernel import SUPPORTED

needs_confinement = pytest.mark.skipif(not SUPPORTED, reason="confinement is written for Linux on x86-64")


def vtcli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vtcli.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@needs_confinement
def test_a_check_prints_a_line_per_case_a_summary_and_writes_everything(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = vtcli("sandbox", "check", "net.tcp", "fs.read_passwd", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("held    fs.read_passwd")
    assert lines[-1].split() == ["all", "3", "0", "0", "0"]
    found = json.loads(file.read_text())
    assert [f["case"] for f in found["findings"]] == ["fs.read_passwd", "net.tcp", "host.descriptors"]
    assert found["sandbox"]["tier"] in ("full", "landlock")


@needs_confinement
def test_what_gets_through_is_exit_code_1() -> None:
    done = vtcli("sandbox", "check", "net.tcp", "--tier", "none", "--quiet")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN  net.tcp" in done.stdout
    assert "the host's tcp listener was reached" in done.stdout


def test_an_unknown_case_is_a_users_mistake() -> None:
    done = vtcli("sandbox", "check", "nowhere")
    assert done.returncode == 2
    assert "no abuse case is called 'nowhere'; families: fs, net" in done.stderr


def test_the_command_line_loads_nothing_heavy_for_it() -> None:
    program = (
        "import sys, vtcli.cli.main; print([m for m in ('numpy', 'torch', 'cv2', 'vtcli.sandbox') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@needs_confinement
def test_the_layers_are_shown_with_what_was_tried() -> None:
    done = vtcli("sandbox", "show")
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("active  net") for line in done.stdout.splitlines())


@needs_confinement
def test_the_doctor_says_what_holds() -> None:
    found = findings._sandbox()
    assert found.state == "ok"
    assert found.found.split()[0] in ("full", "landlock")


@pytest.mark.parametrize(
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
