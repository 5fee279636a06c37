"""The seccomp filter, run by an interpreter of classic BPF: what each call and argument comes to, without a kernel."""

from __future__ import annotations

import errno
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcli.sandbox.confinement import bpf, kernel
from vtcli.sandbox.confinement.syscalls import (
    ALLOWED,
    ANSWERED,
    CONDITIONS,
    FORK_FLAGS,
    ONLY_FOR_THE_HARNESS,
    THREAD_FLAGS,
    TIMES,
)

EPERM, ENOSYS = bpf.refuse(errno.EPERM), bpf.refuse(errno.ENOSYS)
O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_TRUNC = 0, 1, 2, 0o100, 0o1000
NEVER = {
    "socket": 41, "connect": 42, "bind": 49, "vfork": 58, "fork": 57, "execve": 59, "kill": 62, "flock": 73,
    "link": 86, "symlink": 88, "ptrace": 101, "mknod": 133, "personality": 135, "pivot_root": 155, "chroot": 161,
    "mount": 165, "tkill": 200, "tgkill": 234, "add_key": 248, "keyctl": 250, "inotify_init": 253, "unshare": 272,
    "splice": 275, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308,
    "process_vm_readv": 310, "memfd_create": 319, "bpf": 321, "execveat": 322, "userfaultfd": 323,
    "pidfd_send_signal": 424, "io_uring_setup": 425, "open_tree": 428, "fsopen": 430, "pidfd_open": 434,
    "pidfd_getfd": 438, "process_madvise": 440, "landlock_create_ruleset": 444, "memfd_secret": 447,
    "setuid": 105, "setsid": 112, "setpgid": 109, "capset": 126, "shmget": 29, "msgget": 68, "semget": 64,
    "setxattr": 188, "chown": 92, "truncate": 76, "umount2": 166, "init_module": 175, "clock_settime": 227,
}  # fmt: skip


def outcome(program: bpf.FilterProgram, nr: int, *arguments: int, arch: int = bpf.AUDIT_ARCH["x86_64"]) -> int:
    """What the filter returns for a call."""
    filled = [*arguments, *[0] * 6][:6]
    data = struct.pack("=iIQ6Q", nr if nr < 2**31 else nr - 2**32, arch, 0, *(a & (2**64 - 1) for a in filled))
    code = list(struct.iter_unpack("HBBI", program.code))
    at = accumulator = 0
    for _ in range(len(code)):
        what, jt, jf, k = code[at]
        at += 1
        if what == bpf.LOAD:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif what == bpf.AND:
            accumulator &= k
        elif what == bpf.RET:
            return k
        else:
            holds = {bpf.JEQ: accumulator == k, bpf.JGE: accumulator >= k, bpf.JSET: bool(accumulator & k)}[what]
            at += jt if holds else jf
    raise AssertionError("the program does not return")


GATED, FREE = bpf.program(True, True, True), bpf.program(False, False, False)
LAST = bpf.denying(ONLY_FOR_THE_HARNESS)
OPEN = ALLOWED | set(ONLY_FOR_THE_HARNESS)


def test_each_number_has_the_outcome_that_the_lists_say(subtests: pytest.Subtests) -> None:
    for program in [GATED, FREE]:
        with subtests.test("gated" if program is GATED else "free"):
            special = {56, *CONDITIONS, *TIMES}
            for nr in range(520):
                if nr not in special:
                    wanted = bpf.ALLOW if nr in OPEN else bpf.refuse(ANSWERED[nr]) if nr in ANSWERED else EPERM
                    assert outcome(program, nr) == wanted, nr


def test_what_must_never_be_made_is_refused(subtests: pytest.Subtests) -> None:
    for name, nr in NEVER.items():
        with subtests.test(name):
            assert outcome(GATED, nr) == outcome(FREE, nr) == EPERM


@given(nr=st.integers(0, 2**32 - 1), arguments=st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_every_call_has_an_outcome_and_none_is_allowed_outside_the_lists(nr: int, arguments: list[int]) -> None:
    found = outcome(GATED, nr, *arguments)
    if nr not in OPEN | CONDITIONS.keys() | TIMES | {56}:
        assert found != bpf.ALLOW
    if nr >= 0x40000000:
        assert found == bpf.KILL


def test_a_rename_makes_no_device() -> None:
    for program in (GATED, FREE):
        assert [outcome(program, 316, 0, 0, 0, 0, flags) for flags in (0, 1, 2)] == [bpf.ALLOW] * 3
        assert outcome(program, 316, 0, 0, 0, 0, 4) == outcome(program, 316, 0, 0, 0, 0, 5) == bpf.refuse(errno.EINVAL)


def test_other_instruction_sets_are_fatal() -> None:
    for arch in (0x40000003, 0xC00000B7, 0):  # i386 (int 0x80), aarch64
        assert outcome(GATED, 39, arch=arch) == bpf.KILL


def test_forks_and_threads_go_through_the_gate_and_nothing_else_does() -> None:
    for flags in FORK_FLAGS:
        assert outcome(GATED, 56, flags) == bpf.NOTIFY
        assert outcome(FREE, 56, flags) == EPERM
    for flags in THREAD_FLAGS:
        assert outcome(GATED, 56, flags) == bpf.NOTIFY
        assert outcome(FREE, 56, flags) == bpf.ALLOW
    assert outcome(GATED, 435) == ENOSYS


@given(bit=st.integers(0, 31), base=st.sampled_from(FORK_FLAGS + THREAD_FLAGS))
def test_one_other_flag_of_clone_is_refused(bit: int, base: int) -> None:
    flags = base ^ (1 << bit)
    if flags not in FORK_FLAGS + THREAD_FLAGS:
        assert outcome(GATED, 56, flags) == EPERM


def test_a_file_opened_to_read_cannot_be_emptied(subtests: pytest.Subtests) -> None:
    for nr, where in [(2, 1), (257, 2)]:
        with subtests.test(str(nr)):

            def opened(flags: int, nr: int = nr, where: int = where) -> int:
                return outcome(FREE, nr, *[0] * where, flags)

            assert opened(O_RDONLY) == opened(O_WRONLY | O_TRUNC | O_CREAT) == opened(O_RDWR | O_TRUNC) == bpf.ALLOW
            assert opened(O_RDONLY | O_TRUNC) == opened(O_RDONLY | O_TRUNC | O_CREAT) == EPERM


def test_arguments_decide() -> None:
    assert outcome(FREE, 53, 1, 1) == outcome(FREE, 53, 1, 5 | 0o2000000) == bpf.ALLOW  # socketpair
    assert outcome(FREE, 53, 2, 1) == outcome(FREE, 53, 1, 2) == EPERM
    assert outcome(FREE, 44, 3, 0, 0, 0, 0) == bpf.ALLOW  # send
    assert outcome(FREE, 44, 3, 0, 0, 0, 1) == outcome(FREE, 44, 3, 0, 0, 0, 1 << 32) == EPERM
    assert outcome(FREE, 72, 3, 1030) == bpf.ALLOW  # fcntl: F_DUPFD_CLOEXEC, F_SETLK, F_SETOWN, F_SETLEASE
    assert {outcome(FREE, 72, 3, command) for command in (5, 6, 7, 8, 10, 1024, 1026, 1033)} == {EPERM}
    assert outcome(FREE, 16, 0, 0x5412) == bpf.refuse(errno.ENOTTY)  # TIOCSTI
    assert outcome(FREE, 302, 0) == bpf.ALLOW
    assert outcome(FREE, 302, 1) == EPERM
    assert {outcome(FREE, 157, option) for option in (4, 8, 22, 24, 28, 38, 47, 0x59616D61)} == {EPERM}


def test_the_cache_of_files_tells_nothing_of_other_episodes() -> None:
    """Advice is answered as done and not given; RWF_NOWAIT (8), which does not wait for the disk, is refused."""
    for program in (GATED, FREE):
        assert outcome(program, 221, 3, 0, 4096, 4) == bpf.refuse(0)  # fadvise64, POSIX_FADV_DONTNEED
        for nr in (327, 328):  # preadv2, pwritev2
            assert outcome(program, nr, 3, 0, 1, 0, 0, 0) == bpf.ALLOW
            assert outcome(program, nr, 3, 0, 1, 0, 0, 8) == bpf.refuse(errno.EOPNOTSUPP)


def test_times_of_files_are_set_only_where_no_foreign_file_can_be_reached() -> None:
    assert {outcome(GATED, nr) for nr in TIMES} == {bpf.ALLOW}
    assert {outcome(FREE, nr) for nr in TIMES} == {EPERM}


def test_a_process_is_asked_about_itself_only(subtests: pytest.Subtests) -> None:
    for nr in [121, 124, 143, 145, 274, 302]:
        with subtests.test(str(nr)):
            assert outcome(FREE, nr, 0) == bpf.ALLOW
            assert {outcome(FREE, nr, pid) for pid in (1, 4242, 2**31)} == {EPERM}


def test_priority_cores_and_clocks_are_the_callers_own() -> None:
    assert outcome(FREE, 140, 0, 0) == bpf.ALLOW
    assert {outcome(FREE, 140, which, who) for which, who in ((0, 1), (1, 0), (2, 0), (1, 5))} == {EPERM}
    assert outcome(FREE, 204, 0) == bpf.ALLOW
    assert outcome(FREE, 204, 7) == ENOSYS
    for nr in (228, 229, 230):
        assert {outcome(FREE, nr, clock) for clock in range(12)} == {bpf.ALLOW}
        assert {outcome(FREE, nr, (~pid << 3 | 2) % 2**32) for pid in (0, 1, 4242)} == {EPERM}


def test_a_filter_like_a_containers_refuses_what_it_names_and_nothing_else() -> None:
    docker = bpf.denying((272, 165), {56: 0x7E020000})
    assert outcome(docker, 272) == outcome(docker, 56, 0x10000011) == EPERM
    assert outcome(docker, 56, 17) == outcome(docker, 41) == outcome(docker, 273) == bpf.ALLOW


def test_a_worker_gives_up_sending_descriptors_and_adding_filters() -> None:
    """The kernel runs all filters and takes the strictest outcome."""
    sendmsg, seccomp = 46, 317
    assert {outcome(GATED, nr) for nr in (sendmsg, seccomp)} == {bpf.ALLOW}
    assert {outcome(LAST, nr) for nr in (sendmsg, seccomp)} == {EPERM}
    assert {outcome(LAST, nr) for nr in range(460) if nr not in (sendmsg, seccomp)} == {bpf.ALLOW}
    assert outcome(GATED, 307) == EPERM  # sendmmsg


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}
LATER = {"fchmodat2": 452, "futex_waitv": 449}  # newer than some installed headers


@pytest.mark.parametrize("machine", HEADERS)
def test_the_tables_of_system_calls_are_the_kernels(machine: str) -> None:
    """The generic header numbers the calls that differ in 32-bit machines by ``__NR3264_``."""
    path = Path(HEADERS[machine])
    if not path.is_file():
        pytest.skip(f"{path} is not installed")
    text = path.read_text()
    found = {name: int(n) for name, n in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    aliases = dict(re.findall(r"#define __NR_(\w+) __NR3264_(\w+)", text))
    found |= {name: found[alias] for name, alias in aliases.items() if alias in found and alias != name}
    table = {"x86_64": kernel.X86_64, "aarch64": kernel.AARCH64}[machine]
    assert len(table) > 150
    assert {name: found.get(name, LATER.get(name)) for name in table} == table


AARCH64 = """
import platform, struct, sys
platform.machine = lambda: "aarch64"
sys.path[:0] = [sys.argv[1]]
from vtcli.sandbox.confinement import bpf, kernel, syscalls
assert kernel.SUPPORTED and kernel.NUMBERS["openat"] == 56 and 220 == kernel.NUMBERS["clone"]
import json
told = {"gated": bpf.program(True, True, True).code.hex(), "free": bpf.program(False, False, False).code.hex()}
told |= {"allowed": sorted(syscalls.ALLOWED), "answered": dict(syscalls.ANSWERED)}
print(json.dumps(told | {"conditions": sorted(syscalls.CONDITIONS)}))
"""


def test_the_filter_of_aarch64_allows_what_its_own_table_says() -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", AARCH64, root], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    gated, free = (bpf.FilterProgram(bytes.fromhex(told[name]), False) for name in ("gated", "free"))
    arch = bpf.AUDIT_ARCH["aarch64"]
    table = kernel.AARCH64
    special = {*told["conditions"], table["clone"], table["utimensat"], table["sendmsg"], table["seccomp"]}
    for nr in set(range(470)) - special:
        refused = bpf.refuse(told["answered"].get(str(nr), errno.EPERM))
        assert outcome(free, nr, arch=arch) == (bpf.ALLOW if nr in told["allowed"] else refused), nr
    assert outcome(gated, 63, arch=bpf.AUDIT_ARCH["x86_64"]) == bpf.KILL
    never = ("socket", "execveat", "ptrace", "unshare", "mount", "setns", "bpf", "tgkill", "add_key", "io_uring_setup")
    assert {outcome(gated, table[name], arch=arch) for name in never} == {EPERM}
    for flags in FORK_FLAGS:
        assert outcome(gated, table["clone"], flags, arch=arch) == bpf.NOTIFY
        assert outcome(free, table["clone"], flags, arch=arch) == EPERM
    for flags in (O_RDONLY, O_WRONLY | O_TRUNC):
        assert outcome(free, table["openat"], 0, 0, flags, arch=arch) == bpf.ALLOW
    assert outcome(free, table["openat"], 0, 0, O_RDONLY | O_TRUNC, arch=arch) == EPERM
    assert outcome(free, table["read"], arch=arch) == bpf.ALLOW
