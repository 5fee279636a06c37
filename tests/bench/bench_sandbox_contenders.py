"""Ways to run a policy's Python on an image, each as a service: start it, open episodes, run turns, get pixels back.

Every one gets the image as an array and gives the variable ``result`` back as an array, by the fastest way it has:
the array itself in the same process, raw bytes by a pipe or file from others. The ones that are ordinarily used with
PNG are also run with PNG.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml
from PIL import Image

from vtcli.protocols import Pixels

WIDTH, HEIGHT = 1632, 1224  # 2.0 megapixels
OUT = (672, 504)
SINGLE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
WAIT_S = 60.0


def photo() -> Pixels:
    """Smooth shapes and noise, as a photo has: (1224, 1632, 3)."""
    dice = np.random.default_rng(0)
    small = Image.fromarray(dice.integers(0, 256, (34, 51, 3), np.uint8)).resize(
        (WIDTH, HEIGHT), Image.Resampling.BICUBIC
    )
    noisy = np.asarray(small, np.int16) + dice.integers(-8, 9, (HEIGHT, WIDTH, 3), np.int16)
    pixels = np.clip(noisy, 0, 255).astype(np.uint8)
    pixels.flags.writeable = False  # as the image store hands them out, so that episodes can share them
    return pixels


def turn(number: int) -> str:
    """The code of one turn: a quarter of the image, at another place every time, enlarged or reduced by Lanczos."""
    left, top = number * 37 % (WIDTH // 2), number * 53 % (HEIGHT // 2)
    box = (left, top, left + WIDTH // 2, top + HEIGHT // 2)
    return f"from PIL import Image\nresult = image.crop({box}).resize({OUT}, Image.LANCZOS)\n"


class Session(Protocol):
    """One episode."""

    async def turn(self, source: str) -> Pixels: ...

    async def close(self) -> None: ...


class Contender(Protocol):
    """``start`` and ``stop`` are paid once, ``open`` and ``close`` by every episode."""

    name: str

    async def start(self) -> None: ...

    async def open(self) -> Session: ...

    async def stop(self) -> None: ...


class InProcess:
    """``exec`` in the caller: nothing is held, nothing is copied. The limit that others are compared with."""

    name = "in-process exec (unsafe)"

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def open(self) -> Session:
        return ExecSession({"image": Image.fromarray(self.pixels)})


class ExecSession:
    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    async def turn(self, source: str) -> Pixels:
        exec(compile(source, "<turn>", "exec"), self.names)
        return np.asarray(self.names["result"])

    async def close(self) -> None:
        self.names.clear()


MORE = "import cv2, matplotlib.pyplot\n"  # what a policy may use, and finds in the sandbox
CHILD = """
import sys
import numpy as np
from PIL import Image
image = Image.fromarray(np.load(sys.argv[1]))
exec(compile(sys.stdin.read(), "<turn>", "exec"))
sys.stdout.buffer.write(np.asarray(result).tobytes())
"""


class Subprocess:
    """A fresh interpreter for every call, with numpy and PIL, or with ``more``: OpenCV and pyplot as well; the image as
    a raw file, the result by a pipe. ``held``: the caller sees to it that numpy's library starts no threads, which it
    does for every core otherwise."""

    def __init__(self, pixels: Pixels, folder: Path, more: bool = False, held: bool = True) -> None:
        self.pixels, self.folder, self.child = pixels, folder, (MORE if more else "") + CHILD
        self.name = "subprocess per call" + (", one thread" if held else "") + (", OpenCV and pyplot" if more else "")
        self.environment = {k: v for k, v in os.environ.items() if k not in SINGLE} | (SINGLE if held else {})

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def open(self) -> Session:
        path = self.folder / f"subprocess_{os.urandom(4).hex()}.npy"
        np.save(path, self.pixels)
        return SubprocessSession(path, self.child, self.environment)


class SubprocessSession:
    def __init__(self, path: Path, child: str, environment: dict[str, str]) -> None:
        self.path, self.child, self.environment = path, child, environment

    async def turn(self, source: str) -> Pixels:
        command = [sys.executable, "-I", "-c", self.child, str(self.path)]
        given: dict[str, Any] = {"input": source.encode(), "env": self.environment, "timeout": WAIT_S}
        call = functools.partial(subprocess.run, command, capture_output=True, check=True, **given)
        done: subprocess.CompletedProcess[bytes] = await asyncio.to_thread(call)  # so that several can be under way
        return np.frombuffer(done.stdout, np.uint8).reshape(OUT[1], OUT[0], 3)

    async def close(self) -> None:
        self.path.unlink()


class Jupyter:
    """A kernel for every episode. ``png``: the result comes as a displayed PNG, as notebooks do; else as a raw file."""

    def __init__(self, pixels: Pixels, folder: Path, png: bool) -> None:
        self.pixels, self.folder, self.png = pixels, folder, png
        self.name = "Jupyter kernel per episode" + (", PNG" if png else "")

    async def start(self) -> None:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            os.environ[name] = str(self.folder / name.lower())

    async def stop(self) -> None: ...

    async def open(self) -> Session:
        from jupyter_client.manager import AsyncKernelManager

        path = self.folder / f"jupyter_{os.urandom(4).hex()}"
        np.save(path.with_suffix(".npy"), self.pixels)
        manager = AsyncKernelManager(transport="ipc")
        await manager.start_kernel(env=os.environ | SINGLE | {"PYDEVD_DISABLE_FILE_VALIDATION": "1"})
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=WAIT_S)
        session = JupyterSession(manager, client, path, self.png)
        await session.execute(
            f"import numpy as np\nfrom PIL import Image\nimage = Image.fromarray(np.load('{path}.npy'))"
        )
        return session


class JupyterSession:
    def __init__(self, manager: Any, client: Any, path: Path, png: bool) -> None:
        self.manager, self.client, self.path, self.png = manager, client, path, png

    async def execute(self, source: str) -> bytes:
        """The last PNG that was displayed."""
        shown = b""

        def hear(message: dict[str, Any]) -> None:
            nonlocal shown
            data = message["content"].get("data", {})
            shown = base64.b64decode(data["image/png"]) if "image/png" in data else shown

        reply = await self.client.execute_interactive(source, timeout=WAIT_S, output_hook=hear, store_history=False)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(reply["content"])
        return shown

    async def turn(self, source: str) -> Pixels:
        if self.png:
            return np.asarray(Image.open(io.BytesIO(await self.execute(source + "display(result)"))))
        out = self.path.with_suffix(".result")
        await self.execute(source + f"np.asarray(result).tofile('{out}')")
        return np.fromfile(out, np.uint8).reshape(OUT[1], OUT[0], 3)

    async def close(self) -> None:
        self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)
        for suffix in (".npy", ".result"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)


class Smolagents:
    """smolagents' interpreter of syntax trees, in the caller's process: by its own words not a security boundary."""

    name = "smolagents local executor"

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def open(self) -> Session:
        from smolagents.local_python_executor import LocalPythonExecutor

        executor = LocalPythonExecutor(additional_authorized_imports=["PIL", "PIL.*", "numpy", "numpy.*"])
        executor.send_tools({})
        executor.send_variables({"image": Image.fromarray(self.pixels)})
        return SmolagentsSession(executor)


class SmolagentsSession:
    def __init__(self, executor: Callable[[str], Any]) -> None:
        self.executor = executor

    async def turn(self, source: str) -> Pixels:
        return np.asarray(self.executor(source + "result").output)

    async def close(self) -> None: ...


CARDS = Path(__file__).parents[2] / "conf" / "env"


class Sandbox:
    """vtcli's own, at the strongest tier of this machine, with the choices of a card of conf/env that cost time, or
    with ``changes`` to them. ``verify``: a reward asks, so the claims of an episode are tested at its end."""

    def __init__(self, pixels: Pixels, card: str, *, verify: bool = False, **changes: bool) -> None:
        place = yaml.safe_load((CARDS / f"{card}.yaml").read_text())["protocol"]["place"] | changes
        self.pixels = pixels
        self.name = f"vtcli sandbox, {card}" + "".join(f", {k}={v}" for k, v in changes.items())
        self.name += ", verify" if verify else ""
        self.persist, self.transactions = place.get("persist", True), place.get("transactions", True)
        self.verify, self.each_call = verify, place.get("scope") == "call"

    async def start(self) -> None:
        from vtcli.sandbox.host.pool import Pool, PoolConfig

        self.pool = await Pool.start(PoolConfig())

    async def stop(self) -> None:
        await self.pool.close()

    async def episode(self) -> Any:
        from vtcli.sandbox.types import Picture, Setup

        choices = {"persist": self.persist, "transactions": self.transactions}
        return await self.pool.open(Setup((Picture(self.pixels),), {"image": 0}, capture=("result",), **choices))

    async def open(self) -> Session:
        return SandboxSession(self, None if self.each_call else await self.episode())


class SandboxSession:
    def __init__(self, sandbox: Sandbox, episode: Any) -> None:
        self.sandbox, self.episode = sandbox, episode
        self.made: list[Any] = []

    async def turn(self, source: str) -> Pixels:
        episode = self.episode or await self.sandbox.episode()
        done = await episode.run(source)
        if len(done.images) != 1:
            raise RuntimeError(f"{done.status}: {done.error}")
        self.made += done.images if self.sandbox.verify else ()
        if self.episode is None:
            await episode.close()
        return done.images[0].pixels

    async def close(self) -> None:
        from vtcli.sandbox.types import Picture

        if self.episode is not None:
            await self.episode.close()
        sure = await self.sandbox.pool.verify([Picture(self.sandbox.pixels)], self.made)
        if not all(image.verified for image in sure):
            raise RuntimeError("an honest crop was not verified")


def everyone(pixels: Pixels, folder: Path) -> list[Contender]:
    """Side by side; the first is what the others are compared with."""
    return [
        InProcess(pixels),
        *(Sandbox(pixels, card) for card in ("codev", "codevision", "codedance", "pyvision_image")),
        Sandbox(pixels, "codev", transactions=True),
        Sandbox(pixels, "codev", verify=True),
        Sandbox(pixels, "codevision", verify=True),
        Smolagents(pixels),
        Subprocess(pixels, folder, held=False),
        Subprocess(pixels, folder),
        Subprocess(pixels, folder, more=True),
        Jupyter(pixels, folder, png=False),
        Jupyter(pixels, folder, png=True),
    ]
