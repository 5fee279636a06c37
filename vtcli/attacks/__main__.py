"""``python -m vtcli.attacks``: one round in this process, inside a container's filter if asked.

`vtcli sandbox check` and the tests run it in a process of its own, because a filter cannot be taken off again.
"""

# ruff: noqa: T201  # it prints

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import sys
from pathlib import Path

from vtcli.attacks import suite, table
from vtcli.attacks.case import AttackFinding
from vtcli.attacks.check import AttackRound
from vtcli.attacks.scene import Scene
from vtcli.errors import VtcliError
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.types import TIERS

NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*: user, pid, net, ipc, uts, cgroup, mount
MOUNTS = (
    155,
    165,
    166,
    272,
    308,
    428,
    429,
    430,
    431,
    432,
    442,
)  # pivot_root, mount, umount2, unshare, setns, new mounts
CLONE, CLONE3, PR_SET_NO_NEW_PRIVS = 56, 435, 38


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: all held; 1: something was broken; 2: the round could not be made."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.container:
            enter_container_filter()
        return asyncio.run(round_of(asked))
    except (VtcliError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vtcli sandbox check", description="Attack the sandbox on this machine.")
    parser.add_argument("cases", nargs="*", help="names, families or patterns; all, when none is given")
    parser.add_argument("--tier", choices=TIERS, help="this tier instead of the strongest")
    parser.add_argument("--container", action="store_true", help="inside a filter that refuses namespaces and mounts")
    parser.add_argument("--json", type=Path, help="write all findings there")
    parser.add_argument("--quiet", action="store_true", help="only what was not held, and the summary")
    return parser


def enter_container_filter() -> None:
    """As in a container with the usual filter: no new namespaces, no mounts, for this process and all it starts."""
    from vtcli.sandbox.confinement import bpf
    from vtcli.sandbox.confinement.kernel import prctl

    prctl(PR_SET_NO_NEW_PRIVS, 1)
    bpf.load(bpf.denying(MOUNTS, {CLONE: NEW_NAMESPACES}))
    bpf.load(bpf.denying((CLONE3,), code=errno.ENOSYS))  # so that the C library falls back to clone


async def round_of(asked: argparse.Namespace) -> int:
    """One round as the command line asks for."""
    cases = suite.chosen(tuple(asked.cases))
    weak = asked.tier in ("seccomp", "none")
    config = PoolConfig(active=2, minimum_tier=asked.tier or "landlock", tier=asked.tier, outer_boundary=weak)
    if asked.tier == "none":
        cases = tuple(c for c in cases if c.bites)  # all others could do lasting harm

    def show(finding: AttackFinding) -> None:
        if not asked.quiet or finding.verdict.value not in ("held",):
            print(table.line(finding), flush=True)

    scene = Scene()
    try:
        async with await Pool.start(config) as pool:
            report = dict(pool.report)
            tier = report["tier"]
            print(f"sandbox: {json.dumps(report)}, uid {os.getuid()}, {len(cases)} cases", flush=True)
            findings = await AttackRound(pool, scene, tier, show).run(cases)  # pyright: ignore[reportArgumentType]  # a Tier
    finally:
        scene.close()
    print(table.summary(findings))
    if asked.json is not None:
        asked.json.write_text(json.dumps(table.as_json(findings, report, os.getuid()), indent=1))
    return int(table.failed(findings))


if __name__ == "__main__":
    sys.exit(main())
