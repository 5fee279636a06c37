"""The seccomp filter: an allowlist of system calls as classic BPF, its loader, and the gate that counts forks.

The program is a binary search over ranges of system call numbers with one outcome each. Checks of arguments come first.
Only arguments passed by value are checked, because the memory behind a pointer can change after the check (seccomp(2),
"time of check, time of use").
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vtcli.sandbox.confinement.kernel import MACHINE, NUMBERS, syscall
from vtcli.sandbox.confinement.syscalls import (
    ALLOWED,
    ANSWERED,
    CONDITIONS,
    FORK_FLAGS,
    ONLY_FOR_THE_HARNESS,
    THREAD_FLAGS,
    TIMES,
    ByArgument,
)

ALLOW, NOTIFY, KILL, ERRNO = 0x7FFF0000, 0x7FC00000, 0x80000000, 0x00050000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
LOAD, JEQ, JGE, JSET, AND, RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
OFFSET_NR, OFFSET_ARCH, OFFSET_ARGS = 0, 4, 16
SET_MODE_FILTER, FLAG_NEW_LISTENER = 1, 8

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def refuse(code: int) -> int:
    """The filter's outcome for a call that is not made and fails with ``code``; 0 pretends that it succeeded."""
    return ERRNO | code


@dataclass(frozen=True, slots=True)
class FilterProgram:
    """A filter, ready to be loaded. ``listening``: some calls are put to a gate, so that loading it returns a
    listener."""

    code: bytes
    listening: bool


def _assembled(instructions: Sequence[Instruction], listening: bool) -> FilterProgram:
    return FilterProgram(b"".join(struct.pack("HBBI", *i) for i in instructions), listening)


def _low(argument: int) -> int:
    return OFFSET_ARGS + 8 * argument


def _returns(outcome: int) -> Instruction:
    return (RET, 0, 0, outcome)


def _unless(rule: ByArgument) -> list[Instruction]:
    """Refuses unless the condition holds; else goes on behind the block."""
    refusal = _returns(refuse(rule.otherwise))
    if rule.null:
        high: list[Instruction] = [(LOAD, 0, 0, _low(rule.argument) + 4), (JEQ, 1, 0, 0), refusal]
        return [(LOAD, 0, 0, _low(rule.argument)), (JEQ, 0, 2, 0), *high]
    block: list[Instruction] = [(LOAD, 0, 0, _low(rule.argument)), (AND, 0, 0, rule.mask)]
    if rule.forbidden:
        for value in rule.values:
            block += [(JEQ, 0, 1, value), refusal]
        return block
    for left in reversed(range(len(rule.values))):
        block.append((JEQ, left + 1, 0, rule.values[len(rule.values) - 1 - left]))
    return [*block, refusal]


def _clone(fork: int, thread: int) -> list[Instruction]:
    """``clone`` by its flags, which must be exactly those of the C library's fork or thread."""
    block: list[Instruction] = [(LOAD, 0, 0, _low(0))]
    for flags in THREAD_FLAGS:
        block += [(JEQ, 0, 1, flags), _returns(thread)]
    for flags in FORK_FLAGS:
        block += [(JEQ, 0, 1, flags), _returns(fork)]
    return [*block, _returns(refuse(errno.EPERM))]


def _search(ranges: Sequence[tuple[int, int]]) -> list[Instruction]:
    """``ranges``: (first number, outcome), ascending, the first one at 0."""
    if len(ranges) == 1:
        return [_returns(ranges[0][1])]
    half = len(ranges) // 2
    below, above = _search(ranges[:half]), _search(ranges[half:])
    if len(below) > 255:
        raise ValueError("the jump over half of the filter does not fit into 8 bits")
    return [(JGE, len(below), 0, ranges[half][0]), *below, *above]


def _ranges(outcomes: Mapping[int, int], default: int) -> list[tuple[int, int]]:
    found = [(0, outcomes.get(0, default))]
    for number in range(1, max(outcomes) + 2):
        outcome = outcomes.get(number, default)
        if outcome != found[-1][1]:
            found.append((number, outcome))
    return found


def program(forks: bool, count_threads: bool, times: bool) -> FilterProgram:
    """The worker's filter, to which ``denying(ONLY_FOR_THE_HARNESS)`` is added before any code runs. ``forks``: a
    fork is put to the gate, else refused; ``count_threads``: a new thread is put to the gate too, else allowed
    (where the kernel's own limit on processes counts this episode alone); ``times``: the times of files may be set.

    Another architecture's numbers and the x32 ones kill the process: there is no honest reason to use them."""
    fork = NOTIFY if forks else refuse(errno.EPERM)
    thread = NOTIFY if count_threads else ALLOW
    blocks = {NUMBERS["clone"]: _clone(fork, thread)}
    for number, rules in CONDITIONS.items():
        blocks[number] = [step for rule in rules for step in _unless(rule)] + [_returns(ALLOW)]
    # Architecture first: the same number is another call on another architecture.
    code: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (JEQ, 1, 0, AUDIT_ARCH[MACHINE]),
        _returns(KILL),
        (LOAD, 0, 0, OFFSET_NR),
    ]
    if MACHINE == "x86_64":
        code += [(JGE, 0, 1, X32_BIT), _returns(KILL)]
    for number, block in blocks.items():
        code += [(JEQ, 0, len(block), number), *block]
    allowed = {*ALLOWED, *ONLY_FOR_THE_HARNESS, *(TIMES if times else ())}
    outcomes = dict.fromkeys(allowed, ALLOW) | {n: refuse(e) for n, e in ANSWERED.items()}
    code += _search(_ranges(outcomes, refuse(errno.EPERM)))
    return _assembled(code, forks or count_threads)


def denying(numbers: Sequence[int], masks: Mapping[int, int] | None = None, code: int = errno.EPERM) -> FilterProgram:
    """Allows everything except ``numbers``, and except calls whose first argument has a bit of ``masks[number]``. A
    container's default filter has this form. It serves to try the sandbox inside such a filter."""
    block: list[Instruction] = [(LOAD, 0, 0, OFFSET_NR)]
    for number in numbers:
        block += [(JEQ, 0, 1, number), _returns(refuse(code))]
    for number, mask in (masks or {}).items():
        block += [
            (JEQ, 0, 4, number),
            (LOAD, 0, 0, _low(0)),
            (JSET, 0, 1, mask),
            _returns(refuse(code)),
            _returns(ALLOW),
        ]
    return _assembled([*block, _returns(ALLOW)], False)


class _Fprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def load(filter_: FilterProgram) -> int | None:
    """Puts the filter on the calling thread and all that it starts, for good. no_new_privs must be set, or the caller
    have CAP_SYS_ADMIN. Returns the listener of the gate when the program has one. OSError: EBUSY when an outer sandbox
    already listens, EINVAL or ENOSYS without seccomp."""
    buffer = ctypes.create_string_buffer(filter_.code, len(filter_.code))
    # 8 bytes an instruction (struct sock_filter).
    prog = _Fprog(len(filter_.code) // 8, ctypes.addressof(buffer))
    flags = FLAG_NEW_LISTENER if filter_.listening else 0
    listener = syscall("seccomp", SET_MODE_FILTER, flags, ctypes.byref(prog))
    return listener if filter_.listening else None
