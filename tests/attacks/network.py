"""Family ``net``: every address family, and the libraries that open connections for you."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from .case import Attack
from .files import READ

CASES = (
    Attack(
        "net.tcp",
        "connect to a listener of the host over TCP",
        """
import socket
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", T["tcp_port"]), 2))
attempt("localhost", lambda: socket.create_connection(("localhost", T["tcp_port"]), 2))
attempt("any", lambda: socket.create_connection(("0.0.0.0", T["tcp_port"]), 2))
""",
        bites=True,
    ),
    Attack(
        "net.tcp6",
        "the same over IPv6",
        """
import socket
attempt("tcp6", lambda: socket.create_connection(("::1", T.get("tcp6_port", T["tcp_port"])), 2))
attempt("mapped", lambda: socket.create_connection(("::ffff:127.0.0.1", T["tcp_port"]), 2))
""",
        bites=True,
    ),
    Attack(
        "net.udp",
        "send a datagram to the host",
        """
import socket
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", T["udp_port"])))
attempt("broadcast", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("255.255.255.255", 9)))
""",
        bites=True,
    ),
    Attack(
        "net.unix",
        "connect to the host's abstract and named Unix sockets",
        """
import socket
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + T["abstract"]))
attempt("path", lambda: socket.socket(socket.AF_UNIX).connect(T["socket"]))
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket", "/tmp/.X11-unix/X0"):
    attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
""",
        bites=True,
    ),
    Attack(
        "net.families",
        "open a socket of every family and type",
        """
import socket
for family in range(1, 46):
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind, 0)
            say(got=f"socket of family {family}, type {kind}")
            break
        except OSError:
            pass
""",
        bites=True,
    ),
    Attack(
        "net.socketpair",
        "socketpairs of other families than Unix",
        """
import socket
for family in (2, 10, 16, 17, 40):
    attempt(f"family {family}", lambda: socket.socketpair(family, 1))
""",
    ),
    Attack(
        "net.raw_calls",
        "socket, connect, sendto by system call number, also as socketcall of 32 bits would",
        """
import struct
address = ctypes.create_string_buffer(struct.pack("<H", 2) + struct.pack(">H", T["tcp_port"]) + b"\\x7f\\0\\0\\1" + b"\\0" * 8)
def connect():
    fd = syscall(41, 2, 1, 0)
    return syscall(42, fd, address, 16)
attempt("connect", connect)
def fast_open():
    fd = syscall(41, 2, 1, 0)
    return syscall(44, fd, b"x", 1, 0x20000000, address, 16)
attempt("fast open", fast_open)
attempt("accept4", lambda: syscall(288, 0, 0, 0, 0))
""",
        bites=True,
    ),
    Attack(
        "net.own_channel",
        "turn the harness's own socket into another connection",
        """
import socket
found = 0
for fd in range(3, 1024):
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            continue
    except OSError:
        continue
    found += 1
    for name, address in (("abstract", b"\\1\\0\\0" + T["abstract"].encode()), ("path", b"\\1\\0" + T["socket"].encode() + b"\\0")):
        buffer = ctypes.create_string_buffer(address)
        attempt(f"connect {fd} {name}", lambda: syscall(42, fd, buffer, len(address)))
        attempt(f"bind {fd} {name}", lambda: syscall(49, fd, ctypes.create_string_buffer(b"\\1\\0\\0evil"), 7))
    attempt(f"listen {fd}", lambda: syscall(50, fd, 5))
say(sockets=found)
""",
        spoils=True,
    ),
    Attack(
        "net.io_uring",
        "io_uring, which passes filters on sockets and files by",
        """
params = ctypes.create_string_buffer(256)
attempt("setup", lambda: syscall(425, 8, params))
attempt("enter", lambda: syscall(426, 3, 0, 0, 0, 0))
attempt("aio", lambda: syscall(206, 8, ctypes.create_string_buffer(8)))
""",
        bites=True,
    ),
    Attack(
        "net.urls",
        "urllib, http.client, numpy's DataSource, pyplot, all on the host's listener",
        """
import http.client, urllib.request
import numpy as np
from PIL import Image
U = f"http://127.0.0.1:{T['tcp_port']}/x.png"
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
attempt("urllib", lambda: opener.open(U, timeout=0.5))
def get():
    connection = http.client.HTTPConnection("127.0.0.1", T["tcp_port"], timeout=0.5)
    connection.connect()
attempt("http.client", get)
def source():
    return np.lib.npyio.DataSource(None).open(U)
attempt("file url", lambda: opener.open("file://" + T["secret"]).read())
""",
        gaps=READ,
        bites=True,
    ),
    Attack(
        "net.video_urls",
        "FFmpeg opens URLs and the concat, data and file protocols",
        """
import cv2
for url in (f"tcp://127.0.0.1:{T['tcp_port']}", f"http://127.0.0.1:{T['tcp_port']}/v.mp4", f"udp://127.0.0.1:{T['udp_port']}",
            "file://" + T["foreign"], T["foreign"], "concat:" + T["secret"], "/dev/video0"):
    capture = cv2.VideoCapture(url, cv2.CAP_FFMPEG) if not url.startswith(("/dev", "http")) else cv2.VideoCapture(url)
    if capture.isOpened() and capture.read()[0]:
        say(got="video from " + url)
open("list.m3u8", "w").write(f"#EXTM3U\\n#EXT-X-TARGETDURATION:9\\n#EXTINF:9,\\nhttp://127.0.0.1:{T['tcp_port']}/a.ts\\n#EXT-X-ENDLIST\\n")
cv2.VideoCapture("list.m3u8").read()
open("list.txt", "w").write("ffconcat version 1.0\\nfile " + T["foreign"] + "\\n")
if cv2.VideoCapture("list.txt").read()[0]:
    say(got="video of a foreign picture by a list")
""",
        gaps=READ,
        bites=True,
    ),
    Attack(
        "net.dns",
        "names: getaddrinfo, gethostbyname, the resolver's sockets",
        """
import socket
attempt("getaddrinfo", lambda: socket.getaddrinfo("example.com", 80))
attempt("resolv.conf", lambda: open("/etc/resolv.conf").read())
attempt("interfaces", lambda: [n for _, n in socket.if_nameindex()] or 1 / 0)
""",
        gaps=READ,
    ),
    Attack(
        "net.programs",
        "curl, wget, ssh, bash's /dev/tcp",
        """
import subprocess
U = f"127.0.0.1:{T['tcp_port']}"
for command in (["curl", "-m1", "http://" + U], ["wget", "-T1", "-t1", "http://" + U], ["ssh", "-o", "ConnectTimeout=1", "127.0.0.1"],
                ["bash", "-c", f"echo x > /dev/tcp/127.0.0.1/{T['tcp_port']}"], [sys.executable, "-c", "print(1)"]):
    attempt(command[0], lambda: subprocess.run(command, timeout=3, capture_output=True))
""",
        bites=True,
    ),
    Attack(
        "net.listen",
        "bind and listen, so that somebody else may come",
        """
import socket
attempt("tcp", lambda: socket.create_server(("127.0.0.1", 0)))
def unix():
    s = socket.socket(socket.AF_UNIX)
    s.bind("here.sock")
    s.listen()
attempt("unix", unix)
def abstract():
    s = socket.socket(socket.AF_UNIX)
    s.bind("\\0vtcli-evil")
attempt("abstract", abstract)
import multiprocessing.connection
attempt("manager", lambda: multiprocessing.connection.Listener(None, "AF_UNIX"))
""",
        bites=True,
    ),
    Attack(
        "net.vsock",
        "the virtual machine's host (AF_VSOCK), XDP, CAN, Bluetooth, TIPC, QRTR",
        """
for family in (40, 44, 29, 31, 30, 42, 38, 37, 41):
    attempt(f"family {family}", lambda: syscall(41, family, 1, 0))
    attempt(f"family {family}, raw", lambda: syscall(41, family, 3, 0))
""",
        bites=True,
    ),
)
