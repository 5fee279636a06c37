"""What the template imports and does once, so that no episode pays for it."""

from __future__ import annotations

import gc
import importlib
import os
from typing import Any

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
    """Imports the libraries that code may use, draws a first figure, decodes first files, and installs the patches."""
    os.environ.update(SINGLE)
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
    for name in ("scipy.ndimage", "scipy.signal", "scipy.optimize", "scipy.spatial", "sympy", "vtcli.sandbox.video"):
        importlib.import_module(name)
    _first_figure(np.asarray(picture))

    from vtcli.sandbox import patches, video

    video.install_decord()
    patches.install()
    gc.collect()
    gc.freeze()  # the collector of a fork must not touch, and so copy, what is the template's


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
