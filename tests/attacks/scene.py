"""Targets on the host that notice an attack: canary files, listeners, a process, secrets."""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

import vtcli
from vtcli.protocols import Pixels

from .case import TOKEN_PREFIX, Facts

SECRET_NAME = "VTCLI_ABUSE_SECRET"
SHM_KEY = 0x76000000 | os.getpid()  # rounds of two suites may run side by side
FOREIGN_RGB = (3, 141, 59)
"""The colour of a picture that no episode may show."""

VICTIM = f"import os, sys; held = os.environ[{SECRET_NAME!r}]; print('up', flush=True); sys.stdin.read()"


def picture() -> Pixels:
    """``image_clue_0`` of every episode of the suite: (48, 64, 3), all pixels different enough to tell crops apart."""
    y, x = np.mgrid[0:48, 0:64]
    return np.stack([x * 4, y * 5, (x * 7 + y * 3) % 256], axis=-1).astype(np.uint8)


class Scene:
    """Canaries that are world-readable and, in ``open``, world-writable, so that only the sandbox stands before them.

    Make it before the pool starts (the secret must be in the host's environment by then) and ``close`` it at the end.
    """

    def __init__(self) -> None:
        self.token = TOKEN_PREFIX + secrets.token_hex(16)
        os.environ[SECRET_NAME] = self.token
        self.folder = Path(tempfile.mkdtemp(prefix="vtcli-scene-"))
        self.folder.chmod(0o755)
        (self.folder / "secret.txt").write_text(self.token)
        Image.new("RGB", (20, 10), FOREIGN_RGB).save(self.folder / "foreign.png")
        self.open = self.folder / "open"
        self.keep = self.open / "keep.txt"
        self._make_open()
        for path in (self.folder / "secret.txt", self.folder / "foreign.png"):
            path.chmod(0o644)
        self.shared = Path(f"/dev/shm/canary-{os.getpid()}")  # a canary
        if self.shared.parent.is_dir():
            self.shared.write_text(self.token)
            self.shared.chmod(0o644)
        self._listen()
        self.victim = subprocess.Popen(
            [sys.executable, "-I", "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        )
        assert self.victim.stdout is not None
        self.victim.stdout.readline()
        self.shm = _shm_make(self.token)
        self._hostname = socket.gethostname()
        self._clock = time.time() - time.monotonic()
        self._before = self._state()

    def _make_open(self) -> None:
        """The folder that anybody may write into, as it was."""
        shutil.rmtree(self.open, ignore_errors=True)
        self.open.mkdir()
        self.open.chmod(0o777)
        self.keep.write_text("keep")
        self.keep.chmod(0o666)
        os.utime(self.keep, (1_000_000, 1_000_000))

    def _listen(self) -> None:
        """Listeners on every kind of address, none of which may ever hear anything."""
        self.listeners: dict[str, socket.socket] = {}
        self.listeners["tcp"] = socket.create_server(("127.0.0.1", 0))
        self.listeners["udp"] = udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        if socket.has_ipv6:
            try:
                self.listeners["tcp6"] = socket.create_server(("::1", 0), family=socket.AF_INET6)
            except OSError:
                pass  # IPv6 is switched off here
        self.abstract = f"{TOKEN_PREFIX}{os.getpid()}"
        self.listeners["unix_abstract"] = abstract = socket.socket(socket.AF_UNIX)
        abstract.bind("\0" + self.abstract)
        self.listeners["unix_path"] = named = socket.socket(socket.AF_UNIX)
        named.bind(str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o777)
        for listener in (abstract, named):
            listener.listen()
        for listener in self.listeners.values():
            listener.setblocking(False)

    def facts(self, cwd: str) -> Facts:
        """The facts that the attacking code gets, as ``T``. ``cwd``: the bystander's workspace. Never the token."""
        ports = {f"{n}_port": s.getsockname()[1] for n, s in self.listeners.items() if n in ("tcp", "tcp6", "udp")}
        paths = {"folder": self.folder, "secret": self.folder / "secret.txt", "foreign": self.folder / "foreign.png"}
        paths |= {"open": self.open, "keep": self.keep, "socket": self.folder / "socket", "shared": self.shared}
        own = [sys.prefix, sys.base_prefix, str(Path(vtcli.__file__).parent)]
        packages = {"numpy": np.__file__, "pil": Image.__file__, "vtcli": vtcli.__file__}
        return {
            **{name: str(path) for name, path in paths.items()},
            **packages,
            **ports,
            "own": own,  # what the code may see of the file system: Python and its packages
            "abstract": self.abstract,
            "victim": self.victim.pid,
            "host": os.getpid(),
            "shm_key": SHM_KEY,
            "bystander": cwd,
            "secret_name": SECRET_NAME,
            "hostname": self._hostname,
        }

    def harm(self) -> tuple[str, ...]:
        """Events in the scene since the last call, a line each; empty when all is well."""
        found: list[str] = []
        heard, _, _ = select.select(list(self.listeners.values()), [], [], 0)
        for name, listener in self.listeners.items():
            if listener in heard:
                found.append(f"the host's {name} listener was reached")
                _drain(listener)
        if self.victim.poll() is not None:
            found.append(f"a process of the host ended with {self.victim.returncode}")
        now = self._state()
        found += [f"{k}: {v!r}, was {self._before.get(k)!r}" for k, v in now.items() if v != self._before.get(k)]
        found += [f"{k} is gone" for k in self._before if k not in now]
        if found:  # so that the next case finds everything in its place
            self._make_open()
            self._before = self._state()
        return tuple(found)

    def _state(self) -> dict[str, str]:
        """All that code outside could have changed, as text."""
        state = {"host name": socket.gethostname(), "working folder": str(Path.cwd())}
        for path in sorted([self.folder, *self.folder.rglob("*"), self.shared]):
            if path.is_symlink() or path.exists():
                s = path.lstat()
                state[str(path)] = f"{s.st_mode:o} {s.st_uid} {s.st_nlink} {s.st_size if path.is_file() else ''}"
        s = self.keep.stat() if self.keep.exists() else None
        state["keep.txt"] = f"{s.st_mtime} {self.keep.read_bytes()[:40]!r}" if s else "gone"
        state["clock"] = "was set" if abs(time.time() - time.monotonic() - self._clock) > 60 else "steady"
        return state

    def close(self) -> None:
        """Take everything down again."""
        for listener in self.listeners.values():
            listener.close()
        assert self.victim.stdin is not None
        self.victim.stdin.close()
        try:
            self.victim.wait(5)
        except subprocess.TimeoutExpired:
            self.victim.kill()
            self.victim.wait()
        assert self.victim.stdout is not None
        self.victim.stdout.close()
        _shm_remove(self.shm)
        self.shared.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.environ.pop(SECRET_NAME, None)


def _drain(listener: socket.socket) -> None:
    """Take what came, so that the next case starts clean."""
    try:
        while True:
            if listener.type == socket.SOCK_DGRAM:
                listener.recv(65536)
            else:
                listener.accept()[0].close()
    except OSError:
        return


def _shm_make(token: str) -> int:
    """A System V segment with the secret that anybody may read; its id, or -1 where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = int(libc.shmget(SHM_KEY, 4096, 0o1666))
    if segment != -1:
        address = libc.shmat(segment, None, 0)
        if address not in (None, ctypes.c_void_p(-1).value):
            ctypes.memmove(address, token.encode(), len(token))
            libc.shmdt(ctypes.c_void_p(address))
    return segment


def _shm_remove(segment: int) -> None:
    if segment != -1:
        ctypes.CDLL(None).shmctl(segment, 0, None)
