"""Finding the tier that holds on this machine, by trying it in throw-away processes before the first episode.

Each tier is entered as for an episode, strongest first, and inside it everything that it must stop is attempted
(``attempts``). A layer is ``active`` only when its attempt failed as it should; a kernel's version, or a call that
succeeded, is no evidence. Nothing is kept on disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vtcli.sandbox.confinement import landlock
from vtcli.sandbox.confinement.kernel import MACHINE, ConfinementError
from vtcli.sandbox.types import TIERS, Tier
from vtcli.sandbox.waits import PROBE_S

LIMITED = ("memory", "open_files", "file_size")
_FILTERED = (
    *("net", "exec", "fork", "threads", "signal", "ptrace", "privileges", "kernel", "channels"),
    *(("foreign_abi",) if MACHINE == "x86_64" else ()),
)
REQUIRED: dict[Tier, tuple[str, ...]] = {
    "full": ("fs_read", "fs_write", "fs_stat", "disk", "process_ids", *_FILTERED, *LIMITED),
    "landlock": ("fs_read", "fs_write", *_FILTERED, *LIMITED),
    "seccomp": (*_FILTERED, *LIMITED),
    "none": LIMITED,
}
"""Tier -> the layers without which it is not that tier."""

State = Literal["active", "absent", "waived"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One protection. ``by``: what gives it; ``probe``: what was tried, and what came of it. ``absent``: it cannot be
    had here; ``waived``: neither, and by the config an outer boundary stands in for it."""

    name: str
    state: State
    by: str
    probe: str


@dataclass(frozen=True, slots=True)
class Report:
    """The tier that holds here, proved. ``refused``: each stronger tier that does not hold, and why."""

    tier: Tier
    layers: tuple[Layer, ...]
    kernel: str
    landlock_abi: int
    refused: tuple[tuple[Tier, str], ...] = ()

    def line(self) -> str:
        """Summary for a person, and for the record of a run."""
        names = {
            state: " ".join(x.name for x in self.layers if x.state == state) for state in ("active", "absent", "waived")
        }
        missing = "".join(f"; {state}: {names[state]}" for state in ("absent", "waived") if names[state])
        return f"{self.tier} ({names['active']}{missing}) kernel {self.kernel} landlock {self.landlock_abi}"


def strongest(minimum: Tier) -> Report:
    """The strongest tier that holds here. ConfinementError when it is weaker than ``minimum``: names each stronger tier
    with what it lacks, and what can be done."""
    refused: list[tuple[Tier, str]] = []
    for tier in TIERS:
        answer = _tried(tier)
        lacks = _lacks(tier, answer)
        if lacks:
            refused.append((tier, lacks))
            continue
        if TIERS.index(tier) > TIERS.index(minimum):
            raise ConfinementError("tier", _too_weak(tier, minimum, refused))
        waived = TIERS.index(minimum) > TIERS.index("landlock")
        layers = tuple(_layer(found, waived) for found in answer["layers"])
        return Report(tier, layers, os.uname().release, landlock.abi(), tuple(refused))
    raise ConfinementError("tier", f"no tier holds on this machine{_reasons(refused)}")


def _tried(tier: Tier) -> dict[str, Any]:
    """``{"layers": [[name, what got through or null, by, probe], …]}`` or ``{"error": reason}``."""
    start = "import sys; sys.path.append(sys.argv[1]); from vtcli.sandbox.confinement import probing; "
    start += "probing.main(sys.argv[2])"
    package = str(Path(__file__).resolve().parents[3])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", start, package, tier],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"the probes did not end within {PROBE_S:.0f} s"}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return {"error": f"the probes ended with code {done.returncode} and no result: {' '.join(last)}"}
    return answer


def _lacks(tier: Tier, answer: dict[str, Any]) -> str:
    """Reason why the tier does not hold; empty when it does."""
    if "error" in answer:
        return str(answer["error"])
    leaks = {name: leak for name, leak, _, _ in answer["layers"]}
    return "; ".join(f"{name}: {leaks.get(name, 'not tried')}" for name in REQUIRED[tier] if leaks.get(name, "?"))


def _layer(found: list[Any], waived: bool) -> Layer:
    name, leak, by, probe = found
    if leak is None:
        return Layer(name, "active", by, probe)
    accepted = waived and name in REQUIRED["landlock"]
    return Layer(name, "waived" if accepted else "absent", "", f"{probe}: {leak}")


REMEDIES: dict[Tier, str] = {
    "full": "needs user namespaces (or root with CAP_SYS_ADMIN): in a container allow unshare and mount in its seccomp "
    "profile, on a host set user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns",
    "landlock": "needs Linux 5.13 or later with landlock among its LSMs, and a container's filter that lets it through",
    "seccomp": "needs Linux on x86-64 or aarch64 with seccomp filters, not shut in by another listener",
    "none": "needs POSIX resource limits",
}
"""Tier -> what a machine needs for it."""

MEANINGS: dict[Tier, str] = {
    "full": "as landlock, with a private root, a quota by the kernel for the workspace, and process ids apart",
    "landlock": "code reaches no file outside its workspace and Python's, no network, no other process, no privilege",
    "seccomp": "code can read the host's files, and write them where the user may; network and processes are closed",
    "none": "memory, files and time are limited, and nothing else",
}
"""Tier -> what code can and cannot do at it; docs/reliability.md has more."""


def _too_weak(tier: Tier, minimum: Tier, refused: list[tuple[Tier, str]]) -> str:
    return f"the strongest that holds here is {tier}, and at least {minimum} is asked for{_reasons(refused)}"


def _reasons(refused: list[tuple[Tier, str]]) -> str:
    return "".join(f"\n  {name} ({reason}): {REMEDIES[name]}" for name, reason in refused)
