"""Family ``sys``: the kernel's own doors: namespaces, tracing, privileges, other system call tables, devices."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from vtcli.sandbox.types import Status

from .case import DIES, Attack, ends
from .files import READ

SAME_USER = "memory of the same user's processes can be read and written through /proc"
DEATH_OR_OK = DIES | ends(Status.OK)

CASES = (
    Attack(
        "sys.devices",
        "device files, and making new ones",
        """
for name in ("mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1", "loop-control", "loop0", "fuse", "kvm", "tty", "ptmx", "console",
             "net/tun", "vhost-net", "vhost-vsock", "vsock", "uinput", "hpet", "rtc0", "userfaultfd", "mapper/control", "snapshot", "shm", "mqueue"):
    attempt(name, lambda: os.open("/dev/" + name, os.O_RDONLY))
attempt("block", lambda: os.mknod("blk", 0o600 | stat.S_IFBLK, os.makedev(254, 0)))
attempt("mem", lambda: os.mknod("mem", 0o600 | stat.S_IFCHR, os.makedev(1, 1)))
attempt("whiteout", lambda: os.mknod("none", 0o600 | stat.S_IFCHR, 0))
""",
        gaps=READ,
        bites=True,
    ),
    Attack(
        "sys.gpu",
        "GPU devices, CUDA's and DRM's; vacuous where there is no GPU",
        """
import glob
for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/nvidia-cap1",
             "dri/card0", "dri/renderD128", "kfd", "accel0", "infiniband/uverbs0", "gdrdrv", "habanalabs/hl0", "davinci0"):
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_PATH):
        attempt(f"{name} {flags}", lambda: os.open("/dev/" + name, flags))
attempt("list", lambda: os.listdir("/proc/driver/nvidia"))
def cuda():
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise
    count = ctypes.c_int(0)
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise OSError("no device")
    return count.value
attempt("cuda", cuda)
for name in os.environ:
    if "CUDA" in name or "NVIDIA" in name:
        say(got="variable " + name)
""",
    ),
    Attack(
        "sys.namespaces",
        "new namespaces, in every combination that gives rights",
        """
for flag in (0x10000000, 0x20000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80, 0x10020000, 0x200, 0x400):
    attempt(f"unshare {flag:#x}", lambda: syscall(272, flag))
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000):
    attempt(f"clone {flag:#x}", lambda: syscall(56, flag | 17, 0, 0, 0, 0) or os._exit(0))
import struct
attempt("clone3", lambda: syscall(435, ctypes.create_string_buffer(struct.pack("QQQQQQQQ", 0x10000000, 0, 0, 0, 17, 0, 0, 0)), 64) or os._exit(0))
""",
        bites=True,
    ),
    Attack(
        "sys.mounts",
        "mount, bind, the new mount calls, chroot, pivot_root",
        """
attempt("tmpfs", lambda: syscall(165, b"none", b".", b"tmpfs", 0, 0))
attempt("bind", lambda: syscall(165, b"/", b".", b"", 4096, 0))
attempt("remount", lambda: syscall(165, b"", b"/", b"", 32 | 4096, 0))
attempt("proc", lambda: syscall(165, b"proc", b".", b"proc", 0, 0))
attempt("fsopen", lambda: syscall(430, b"tmpfs", 0))
attempt("open_tree", lambda: syscall(428, -100, b"/", 1))
attempt("move_mount", lambda: syscall(429, -100, b"/", -100, b".", 0))
attempt("mount_setattr", lambda: syscall(442, -100, b"/", 0, ctypes.create_string_buffer(32), 32))
attempt("umount", lambda: syscall(166, b"/proc", 2))
attempt("umount w", lambda: syscall(166, os.getcwd().encode(), 2))
attempt("chroot", lambda: os.chroot("."))
attempt("pivot_root", lambda: syscall(155, b".", b"."))
attempt("swapon", lambda: syscall(167, b"swap", 0))
attempt("quotactl", lambda: syscall(179, 0x800002, 0, 0, 0))
""",
    ),
    Attack(
        "sys.setns",
        "enter the namespaces of others, by /proc and by pidfd",
        """
for pid in (1, os.getppid(), T["host"], T["victim"]):
    for name in ("mnt", "net", "user", "pid", "ipc"):
        attempt(f"setns {pid} {name}", lambda: syscall(308, os.open(f"/proc/{pid}/ns/{name}", 0), 0))
    attempt(f"pidfd_open {pid}", lambda: syscall(434, pid, 0))
""",
        bites=True,
    ),
    Attack(
        "sys.ptrace",
        "trace the parent, the first process and the host's, and let oneself be traced",
        """
free = []
def trace(pid, request):
    syscall(101, request, pid, 0, 0)
    free.append(pid)
attempt("seize", lambda: trace(T["victim"], 0x4206))
if not free:  # a traced guard or host would stop
    for pid in (os.getppid(), 1, T["host"], T["victim"]):
        attempt(f"seize {pid}", lambda: trace(pid, 0x4206))
        attempt(f"attach {pid}", lambda: trace(pid, 16))
for pid in (os.getppid(), 1, T["host"], T["victim"]):
    attempt(f"kcmp {pid}", lambda: syscall(312, os.getpid(), pid, 0, 1, 1))
""",
        bites=True,
    ),
    Attack(
        "sys.vm_readv",
        "read and write the memory of others: process_vm_readv, /proc/pid/mem, pidfd_getfd, process_madvise",
        """
buffer = ctypes.create_string_buffer(4096)
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
here = iovec(ctypes.addressof(buffer), 4096)
for pid in (os.getppid(), 1, T["host"], T["victim"]):
    for number in (310, 311):
        attempt(f"{number} {pid}", lambda: syscall(number, pid, ctypes.byref(here), 1, ctypes.byref(here), 1, 0))
    attempt(f"mem {pid}", lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR))
attempt("getfd", lambda: syscall(438, 3, 3, 0))
attempt("process_madvise", lambda: syscall(440, 3, 0, 0, 21, 0))
attempt("process_mrelease", lambda: syscall(448, 3, 0))
""",
        gaps={"seccomp": SAME_USER},
        bites=True,
    ),
    Attack(
        "sys.privileges",
        "become somebody else, or more: uids, capabilities, priorities, limits",
        """
import resource
attempt("setuid", lambda: os.getuid() == 0 and 1 / 0 or os.setuid(0))
attempt("setresuid", lambda: os.getuid() == 0 and 1 / 0 or os.setresuid(0, 0, 0))
attempt("setgroups", lambda: os.setgroups([0]))
attempt("nice", lambda: os.nice(-5))
attempt("fifo", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
for name in ("NOFILE", "AS", "NPROC", "FSIZE", "CORE", "CPU", "MEMLOCK"):
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]
    if hard == resource.RLIM_INFINITY:
        say(free=name)
    else:
        attempt("raise " + name, lambda: resource.setrlimit(kind, (hard + 1, hard + 1)))
import struct
head, data = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0)), ctypes.create_string_buffer(b"\\xff" * 24)
attempt("capset", lambda: syscall(126, head, data))
attempt("ioprio", lambda: syscall(251, 1, 0, 1 << 13))
""",
    ),
    Attack(
        "sys.capabilities",
        "what /proc or capget say that the code may do: nothing",
        """
import struct
head, data = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0)), ctypes.create_string_buffer(24)
try:
    syscall(125, head, data)
    if any(data.raw):
        say(got="capabilities", value=data.raw.hex())
except OSError as error:
    say(failed="capget", why=repr(error))
try:
    if syscall(157, 39, 0, 0, 0, 0) != 1:
        say(got="no_new_privs is not set")
except OSError as error:
    say(failed="prctl", why=repr(error))
""",
    ),
    Attack(
        "sys.kernel_interfaces",
        "bpf, perf, userfaultfd, keyrings, modules, kexec, personality, clock, host name, accounting, syslog",
        """
attempt("bpf", lambda: syscall(321, 0, ctypes.create_string_buffer(64), 64))
attempt("perf", lambda: syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0))
attempt("userfaultfd", lambda: syscall(323, 1))
attempt("init_module", lambda: syscall(175, b"x", 1, b""))
attempt("finit_module", lambda: syscall(313, 0, b"", 0))
attempt("kexec", lambda: syscall(246, 0, 0, 0, 0))
attempt("personality", lambda: syscall(135, 0x0040000))
attempt("sethostname", lambda: syscall(170, T["hostname"].encode(), len(T["hostname"])))
attempt("setdomainname", lambda: syscall(171, b"x", 1))
attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
attempt("adjtimex", lambda: syscall(305, 0, ctypes.create_string_buffer(b"\\1" + b"\\0" * 255)))
attempt("acct", lambda: syscall(163, b"acct"))
attempt("syslog", lambda: syscall(103, 3, ctypes.create_string_buffer(99), 99))
attempt("iopl", lambda: syscall(172, 3))
attempt("ioperm", lambda: syscall(173, 0x70, 1, 1))
attempt("modify_ldt", lambda: syscall(154, 0, ctypes.create_string_buffer(64), 64) < 0 and 1 / 0)
attempt("lookup_dcookie", lambda: syscall(212, 0, ctypes.create_string_buffer(99), 99))
attempt("vhangup", lambda: syscall(153))
""",
        bites=True,
    ),
    Attack(
        "sys.keyrings",
        "the kernel's keyrings, which cross episodes of one uid",
        """
attempt("add_key", lambda: syscall(248, b"user", b"vtcli", b"message", 7, -4))
attempt("session", lambda: syscall(250, 1, b"vtcli", 0, 0, 0))
attempt("search", lambda: syscall(250, 10, -4, b"user", b"vtcli", 0))
attempt("request_key", lambda: syscall(249, b"user", b"vtcli", b"", -4))
""",
        bites=True,
    ),
    Attack(
        "sys.sysv",
        "System V memory, semaphores and queues of the host",
        """
_LIBC.shmat.restype = ctypes.c_void_p
def read():
    segment = _LIBC.shmget(T["shm_key"], 4096, 0)
    if segment == -1:
        raise OSError(ctypes.get_errno(), "shmget")
    address = _LIBC.shmat(segment, None, 0o10000)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    return leaks(ctypes.string_at(address, 64))
attempt("shm", read)
attempt("shared file", lambda: leaks(open(T["shared"], "rb").read()))
attempt("list", lambda: open("/proc/sysvipc/shm").read())
""",
        gaps=READ,
        bites=True,
    ),
    Attack(
        "sys.seccomp_off",
        "take the filter away, add one's own, become its supervisor",
        """
import struct
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
attempt("listener", lambda: syscall(317, 1, 8, filter))
attempt("strict by prctl of another mode", lambda: syscall(157, 22, 9, filter, 0, 0))
attempt("dumpable", lambda: syscall(157, 4, 1, 0, 0, 0))
attempt("ptracer any", lambda: syscall(157, 0x59616D61, -1, 0, 0, 0))
attempt("no_new_privs off", lambda: syscall(157, 38, 0, 0, 0, 0))
attempt("keep caps", lambda: syscall(157, 8, 1, 0, 0, 0))
attempt("ambient", lambda: syscall(157, 47, 2, 21, 0, 0))
attempt("subreaper", lambda: syscall(157, 36, 1, 0, 0, 0))
attempt("mm map", lambda: syscall(157, 35, 1, 4096, 0, 0))
attempt("dispatch", lambda: syscall(157, 59, 1, 0, 0, 0))
attempt("socket after all", lambda: syscall(41, 2, 1, 0))
""",
        bites=True,
    ),
    Attack(
        "sys.x32",
        "the x32 table, whose numbers pass filters that forget it",
        """
attempt("socket", lambda: syscall(0x40000000 + 41, 2, 1, 0))
attempt("execve", lambda: syscall(0x40000000 + 520, b"/bin/true", 0, 0))
attempt("ptrace", lambda: syscall(0x40000000 + 521, 0, 0, 0, 0))
attempt("open", lambda: syscall(0x40000000 + 2, T["secret"].encode(), 0))
""",
        statuses=DEATH_OR_OK,
    ),
    Attack(
        "sys.int80",
        "the 32-bit table by int 0x80 from machine code",
        """
import mmap
def int80(number, b=0, c=0, d=0):
    code = b"\\x53\\xb8" + number.to_bytes(4, "little") + b"\\xbb" + b.to_bytes(4, "little") + b"\\xb9" + c.to_bytes(4, "little")
    code += b"\\xba" + d.to_bytes(4, "little") + b"\\xcd\\x80\\x5b\\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    value = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if value < 0:
        raise OSError(-value, os.strerror(-value))
    return value
attempt("getpid", lambda: int80(20))
attempt("socket", lambda: int80(359, 2, 1, 0))
attempt("fork", lambda: int80(2) or os._exit(0))
""",
        statuses=DEATH_OR_OK,
        bites=True,
    ),
    Attack(
        "sys.native_code",
        "machine code from a writable and executable page meets the same filter",
        """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8\\x29\\0\\0\\0\\xbf\\2\\0\\0\\0\\xbe\\1\\0\\0\\0\\x31\\xd2\\x0f\\x05\\xc3")  # socket(2, 1, 0)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
fd = ctypes.CFUNCTYPE(ctypes.c_long)(address)()
if fd >= 0:
    say(got="a socket from machine code", value=fd)
""",
        bites=True,
        statuses=DEATH_OR_OK,
    ),
    Attack(
        "sys.sweep",
        "every system call number that has no business here, with harmless arguments",
        """
# 64-bit numbers whose success would be a way out; arguments of -1 make most of them fail even where they are allowed.
for number in (101, 155, 161, 165, 166, 167, 168, 169, 172, 173, 175, 176, 179, 180, 246, 248, 249, 250, 272, 298, 300, 303, 304,
               308, 310, 311, 312, 313, 317, 320, 321, 322, 323, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 440, 442, 443, 447, 448):
    try:
        value = syscall(number, -1, 0, 0, 0, 0, 0)
        say(got=f"system call {number}", value=value)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            say(got=f"system call {number} is not refused", value=str(error))
""",
        bites=True,
    ),
)
