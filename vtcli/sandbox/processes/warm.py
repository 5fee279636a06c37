"""What the template imports and does once, so that no episode pays for it."""

from __future__ import annotations

import gc
import importlib
import os
import random
import sys
from typing import Any, cast

SINGLE = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_OPENCL_RUNTIME": "disabled",
    "MPLBACKEND": "Agg",
}
"""Environment for a template that stays single-threaded, without which it could not fork safely; to be set before numpy
is imported, so best when the process is started."""


def warm() -> None:
    """Imports the libraries that code may use, draws a first figure, decodes first files, installs the patches,
    and does first runs."""
    os.environ.update(SINGLE)
    _import_viewers()
    import cv2
    import numpy as np
    from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

    cv2.setNumThreads(1)
    Image.init()
    picture = Image.fromarray(np.zeros((32, 32, 3), np.uint8))
    for turned in (picture.rotate(30), picture.resize((16, 16)), picture.filter(ImageFilter.SHARPEN)):
        ImageOps.autocontrast(ImageEnhance.Contrast(turned).enhance(1.1))
    ImageDraw.Draw(picture).text((0, 0), "a", font=ImageFont.load_default())
    cv2.cvtColor(cv2.resize(np.asarray(picture), (8, 8)), cv2.COLOR_RGB2BGR)
    for name in (
        "scipy.ndimage",
        "scipy.signal",
        "scipy.optimize",
        "scipy.spatial",
        "sympy",
        "vtcli.sandbox.video.reader",
    ):
        importlib.import_module(name)
    _first_figure(np.asarray(picture))

    from vtcli.sandbox.harness import patches
    from vtcli.sandbox.processes import memory, rehearsal
    from vtcli.sandbox.video import reader as video

    video.install_decord()
    patches.install()
    rehearsal.rehearse()
    for hook in memory.HOOKS:
        hook()  # so that there is nothing left for it to do in a fork
    # The same code on the same images does the same in every episode, as far as it asks these two.
    random.seed(0)
    np.random.seed(0)
    gc.collect()
    gc.freeze()  # the collector of a fork must not touch, and so copy, what is the template's


def _import_viewers() -> None:
    """Pillow's ``ImageShow`` without IPython, which it would bring along where it is installed: 66 modules, and a hook
    that touches memory in every fork. Code may import it all the same."""
    if "IPython" in sys.modules:
        return
    sys.modules["IPython"] = cast(Any, None)  # as if it were not installed
    try:
        importlib.import_module("PIL.ImageShow")
    finally:
        del sys.modules["IPython"]


def _first_figure(picture: Any) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.imshow(picture)
    axes.plot([0, 1], [0, 1], label="a")
    axes.set_title("a")
    axes.legend()
    figure.canvas.draw()
    pyplot.close("all")
