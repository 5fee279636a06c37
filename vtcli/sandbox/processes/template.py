"""The template: a warm Python with one thread and the libraries imported, started with a clean environment. It forks a
guard for each episode and tells the host when one has ended; it never sees what an episode does.

The host speaks to it over one channel: first the configuration, then ``open`` frames with the guard's end of the
episode's channel, and ``kill`` frames. The end of that channel is the end of the template and of all its guards.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from vtcli.sandbox.confinement.confine import TemplateState

ENVIRONMENT = {
    # One thread per library: the template must have a single thread when it forks, and a run gets one core.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_OPENCL_RUNTIME": "disabled",
    "MPLBACKEND": "Agg",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "LC_ALL": "C.UTF-8",
    # Libraries that look for programs find none.
    "PATH": "",
    "HOME": "/nonexistent",
}


def command(channel: int) -> list[str]:
    """The command line by which the host starts it, with its end of the channel on descriptor ``channel``. The import
    path is the host's, so that the same libraries are found; nothing else of the host's Python is taken over."""
    package = str(Path(__file__).resolve().parents[3])
    paths = list(dict.fromkeys([*(p for p in sys.path if p), package]))
    program = f"import sys; sys.path[:] = {paths!r}; from vtcli.sandbox.processes.template import main; main({channel})"
    return [sys.executable, "-P", "-s", "-c", program]  # isolated but for ENVIRONMENT, which is all it gets


def main(channel: int) -> NoReturn:
    """Never returns; ends when the host does."""
    code = 1
    try:
        code = serve(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, channel))
    finally:
        os._exit(code)


def serve(channel: socket.socket) -> int:
    """Configures, warms up, reports, and forks guards until the channel ends."""
    from vtcli.sandbox.protocol import frames

    frame = frames.receive(channel)
    if frame is None:
        return 0
    try:
        state, report = prepare(frame.header)
    except Exception as e:
        from vtcli.sandbox.confinement.kernel import ConfinementError

        config = isinstance(e, ConfinementError)
        text = str(e) if config else f"{type(e).__name__}: {e}"
        frames.send(channel, {"ready": False, "config": config, "error": text[:8000]})
        return 1
    frames.send(channel, {"ready": True, "report": report})
    from vtcli.sandbox.processes.fork_server import ForkServer

    return ForkServer(channel, state).serve()


def prepare(config: Any) -> tuple[TemplateState, dict[str, Any]]:
    """Chooses the tier, imports the libraries and enters what all episodes share. An exact ``tier`` is entered without
    probes. Returns the state for the guards, and the report. Raises ``ConfinementError``."""
    import gc
    from dataclasses import asdict

    from vtcli.sandbox.confinement import confine, probes

    # Before the imports: the probes fork, and a light process forks faster.
    report = None if config["tier"] else probes.strongest(config["minimum_tier"])
    warm()
    state = confine.prepare_template(config["tier"] if report is None else report.tier)
    gc.collect()
    gc.freeze()  # a collector that looked at what is there now would copy it in every fork
    told = {"tier": state.tier, "probed": False} if report is None else {**asdict(report), "probed": True}
    return state, told


def warm() -> None:
    """Imports the libraries that code may use, draws a first figure, and installs the recorder's patches. Seeds the
    random generators, so that the same code on the same images gives the same result in every episode."""
    import importlib
    import random

    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name.endswith(("_THREADS", "BACKEND"))})
    import cv2
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    cv2.setNumThreads(1)
    Image.init()
    picture = Image.new("RGB", (32, 32))
    ImageDraw.Draw(picture).text((0, 0), "a", font=ImageFont.load_default())
    for name in (
        *("PIL.ImageEnhance", "PIL.ImageFilter", "PIL.ImageOps", "PIL.ImageShow"),
        *("scipy.ndimage", "scipy.signal", "scipy.optimize", "scipy.spatial", "sympy"),
        *("vtcli.sandbox.processes.fork_server", "vtcli.sandbox.replay.redo"),
    ):
        importlib.import_module(name)
    _first_figure(np.asarray(picture))

    from vtcli.sandbox.harness import figures
    from vtcli.sandbox.provenance import patch_arrays, patch_cv2, patch_pil
    from vtcli.sandbox.video import reader

    reader.install_decord()
    for patches in (patch_pil, patch_arrays, patch_cv2, figures):
        patches.install()
    random.seed(0)
    np.random.seed(0)


def _first_figure(picture: Any) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.imshow(picture)
    axes.plot([0, 1], [0, 1], label="a")
    axes.set_title("a")
    axes.legend()
    figure.canvas.draw()
    pyplot.close("all")
