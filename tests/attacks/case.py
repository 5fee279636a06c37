"""One attack, and the lines in front of its code with which it says what it got."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vtcli.sandbox.types import OVER, RunResult, Setup, Status, Tier
from vtcli.schema import Json

MARK = "@@"
"""A line of output that starts with it is a report of the case."""

TOKEN_PREFIX = "vtcli-canary-"
"""Every secret of the scene is this and 32 hexadecimal digits. Code knows the prefix only."""


class AttackVerdict(StrEnum):
    """The judgement of one attack."""

    HELD = "held"
    BROKEN = "BROKEN"  # the code got something, or somebody else was harmed
    GAP = "gap"  # got something that this tier is known not to hold (docs/reliability.md)
    VOID = "void"  # the case itself went wrong, so that nothing was shown


@dataclass(frozen=True, slots=True)
class AttackFinding:
    """One line of the table."""

    case: str
    verdict: AttackVerdict
    status: str  # of the run that attacked
    why: tuple[str, ...] = ()
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """All that the host saw of one case. ``then`` is the same episode's next run, ``bystander`` an episode that was
    open before, ``visitor`` one that was opened after; ``harm`` is what happened to the scene outside, a line each."""

    run: RunResult
    then: RunResult
    bystander: RunResult
    visitor: RunResult
    harm: tuple[str, ...] = ()
    wall_s: float = 0.0  # of the attacking run, as the caller felt it
    verify_s: float = 0.0  # of testing the claims about its images
    then_s: float = 0.0  # of the same episode's next run


Facts = Mapping[str, Json]
Extra = Callable[[CaseRecord, tuple[Facts, ...]], list[str]]
"""A judge of one case: what else the attacker got, a line each."""


@dataclass(frozen=True, slots=True)
class Attack:
    """``code`` attacks: it calls ``attempt(name, function)``, which reports a win when the function returns, or
    ``say(got=...)``. ``after`` runs next in the same episode, in front of the check that the episode is well."""

    name: str  # family.act
    what: str
    code: str
    after: str = ""
    statuses: frozenset[Status] = frozenset({Status.OK})  # how the attacking run may end
    spoils: bool = False  # the code may ruin its own episode: its next run need not be well, everybody else's must
    keeps: bool = True  # names and files of the runs before are still there after a run that failed
    raw: bool = False  # the source is sent as it is, without the preamble: nothing is reported
    finishes: bool = True  # the code's last line is reached when the run ends ok
    bites: bool = False  # without isolation it is BROKEN and does no lasting harm, which a test shows
    gaps: Mapping[Tier, str] = field(default_factory=dict[Tier, str])
    setup: Callable[[Setup], Setup] | None = None
    extra: Extra | None = None
    wall_limit_s: float = 15.0  # of the attacking run; the judge allows `judge.SLACK_S` more

    def __post_init__(self) -> None:
        if self.statuses & {Status.LOST}:
            raise ValueError(f"{self.name}: lost is our fault, so no case may expect it")


def ends(*statuses: Status) -> frozenset[Status]:
    """The ways in which a case's attacking run may end."""
    return frozenset(statuses)


STOPPED = ends(Status.TIMEOUT)
DIES = ends(Status.CRASH, Status.EXIT)
FULL_STOP = ends(Status.OOM, Status.ERROR, Status.CRASH)
BREAKS_ITSELF = ends(Status.OK, Status.EXIT, Status.CRASH, Status.ERROR, Status.PROTOCOL, Status.TIMEOUT)
"""Code that turns on its own harness may end in any of these, but never as ours (``LOST``)."""

PREAMBLE = r"""
import ctypes, errno, json, os, re, stat, sys, time
T = json.loads({facts!r})
SECRET = re.compile(rb"{prefix}[0-9a-f]{{32}}")
_LIBC = ctypes.CDLL(None, use_errno=True)

def say(_write=os.write, _dumps=json.dumps, **facts):
    _write(1, ("\n{mark}" + _dumps(facts, default=repr) + "\n").encode("utf-8", "replace"))

def attempt(name, act, *arguments, _defects=(NameError, ImportError, AttributeError, TypeError, SyntaxError)):
    try:
        value = act(*arguments)
    except _defects as error:
        say(void=name, why=repr(error)[:300])
    except BaseException as error:
        say(failed=name, why=repr(error)[:120])
    else:
        say(got=name, value=repr(value)[:300])

def syscall(number, *arguments):
    value = _LIBC.syscall(ctypes.c_long(number), *[
        ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a for a in arguments
    ])
    if value == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value

def leaks(data):
    found = SECRET.search(data if isinstance(data, bytes) else bytes(str(data), "utf-8", "replace"))
    if found:
        say(got="secret", value=found.group().decode())
    return bool(found)

say(began=1)
"""

LAST = "\nsay(done=1)\n"


def program(case: Attack, facts: Facts) -> str:
    """The source of the attacking run."""
    return case.code if case.raw else preamble(facts) + case.code + LAST


def preamble(facts: Facts) -> str:
    """The lines in front of every case: ``T`` (names of what there is to attack), ``say``, ``attempt``, ``syscall``."""
    return PREAMBLE.format(facts=json.dumps(facts), prefix=TOKEN_PREFIX, mark=MARK)


def reports(output: str) -> tuple[Facts, ...]:
    """Reports of the code, in order. Broken lines are left out: output is shortened in the middle."""
    found: list[Facts] = []
    for line in output.splitlines():
        if line.startswith(MARK):
            try:
                value = json.loads(line[len(MARK) :])
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                found.append(value)
    return tuple(found)


def over(result: RunResult) -> bool:
    """The episode ended with this run."""
    return result.status in OVER
