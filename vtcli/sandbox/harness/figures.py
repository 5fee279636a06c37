"""Matplotlib figures to pixels, with the part of the input picture that they show."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from vtcli.protocols import Pixels
from vtcli.sandbox.provenance import patching
from vtcli.sandbox.provenance.recorder import DEPTH, MARK, Recorder
from vtcli.sandbox.provenance.trace import Trace, moved
from vtcli.sandbox.types import Operation
from vtcli.schema import Json

_Window = tuple[float, float, float, float]


def size(figure: Any) -> tuple[float, float]:
    """Width and height in pixels."""
    width, height = figure.get_size_inches()
    return float(width) * float(figure.dpi), float(height) * float(figure.dpi)


def rendered(figure: Any, recorder: Recorder) -> tuple[Pixels, Trace | None]:
    """RGB of the figure on white, and the history of the picture it shows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = figure.canvas if type(figure.canvas) is FigureCanvasAgg else FigureCanvasAgg(figure)
    inside, DEPTH.inside = DEPTH.inside, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            canvas.draw()
    finally:
        DEPTH.inside = inside
    rgba = np.asarray(canvas.buffer_rgba())
    pixels = np.ascontiguousarray(rgba[:, :, :3])
    if rgba[:, :, 3].min() < 255:
        alpha = rgba[:, :, 3:].astype(np.uint16)
        pixels = ((rgba[:, :, :3].astype(np.uint16) * alpha + 255 * (255 - alpha)) // 255).astype(np.uint8)
    try:
        return pixels, history(figure, recorder, (pixels.shape[1], pixels.shape[0]))
    except Exception as problem:  # a figure's artists are the code's own objects
        recorder.trouble("figure", problem)
        return pixels, None


def history(figure: Any, recorder: Recorder, shape: tuple[int, int]) -> Trace | None:
    """The chain of the picture shown by the figure; with several, the one shown largest. ``axes`` of the last operation
    is where it stands in the figure, in the figure's pixels."""
    shown: list[tuple[float, Trace, _Window, _Window]] = []
    for axes in figure.axes:
        for artist in axes.get_images():
            trace = getattr(artist, MARK, None)
            windows = _windows(axes, artist, trace, shape) if isinstance(trace, Trace) else None
            if isinstance(trace, Trace) and windows is not None:
                part, place = windows
                shown.append(((place[2] - place[0]) * (place[3] - place[1]), trace, part, place))
    if not shown:
        return None
    _, trace, part, place = max(shown, key=lambda entry: entry[0])
    w, h = trace.size
    if part != (0, 0, w, h):
        cut = [round(v) for v in part]
        new = (max(cut[2] - cut[0], 1), max(cut[3] - cut[1], 1))
        trace = trace.then("crop", {"box": list[Json](cut)}, "matplotlib", new, moved(cut[0], cut[1]))
        recorder.log(trace.operations[-1])
    arguments: dict[str, Json] = {"kind": "figure", "axes": [round(v, 2) for v in place], "images": len(shown)}
    operation = Operation("other", arguments, "matplotlib", trace.image, trace.box)
    return replace(trace, operations=(*trace.then_swap(), operation), size=shape, back=None, swapped=False)


def _windows(axes: Any, artist: Any, trace: Trace, shape: tuple[int, int]) -> tuple[_Window, _Window] | None:
    """The part of the image that is in view, in its pixels, and its place in the figure; None when the axes turn or
    mirror it, or are not linear."""
    w, h = trace.size
    left, right, bottom, top = artist.get_extent()
    if artist.origin == "lower":
        return None
    points = axes.transData.transform([(left, top), (right, bottom)])
    (x1, y1), (x2, y2) = ((float(x), shape[1] - float(y)) for x, y in points)
    bounds = axes.get_window_extent()
    ax1, ax2 = float(bounds.x0), float(bounds.x1)
    ay1, ay2 = shape[1] - float(bounds.y1), shape[1] - float(bounds.y0)
    if axes.name != "rectilinear" or {axes.get_xscale(), axes.get_yscale()} != {"linear"} or x2 <= x1 or y2 <= y1:
        return None
    place = (max(x1, ax1), max(y1, ay1), min(x2, ax2), min(y2, ay2))
    if place[0] >= place[2] or place[1] >= place[3]:
        return None
    sx, sy = w / (x2 - x1), h / (y2 - y1)
    part = ((place[0] - x1) * sx, (place[1] - y1) * sy, (place[2] - x1) * sx, (place[3] - y1) * sy)
    near = tuple(round(v) if abs(v - round(v)) < 0.02 else v for v in part)
    return (near[0], near[1], near[2], near[3]), place


def of_artist(value: object) -> Any:
    """The figure that a value is, or that it, or the first entry of a list of them, is drawn on; None for others."""
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    if type(value) in (list, tuple) and value:
        value = cast("list[object]", value)[0]
    if isinstance(value, Artist):
        found = value if isinstance(value, Figure) else value.get_figure(root=True)
        return found if isinstance(found, Figure) else None
    return None


def open_figures() -> list[Any]:
    """pyplot's open figures, in order of their numbers."""
    from matplotlib._pylab_helpers import Gcf

    return [found.canvas.figure for _, found in sorted(Gcf.figs.items())]


def close_all() -> None:
    """Every figure: one of a 2-Mpixel image holds 67 MiB."""
    if not open_figures():
        return
    from matplotlib import pyplot

    inside, DEPTH.inside = DEPTH.inside, True
    try:
        pyplot.close("all")
    finally:
        DEPTH.inside = inside


Show = Callable[[object, str], None]
_show: Show | None = None


def show_with(show: Show | None) -> None:
    """Sets the function that gets figures and images that are shown: called with a figure or image and "show" or
    "pil_show"."""
    global _show  # noqa: PLW0603  # pyplot is the process's, and so is its screen
    _show = show


def install() -> None:
    """``plt.show``, ``Figure.show`` and ``Image.show`` hand over to ``show_with``'s function; backends other than Agg
    are asked for in vain; images on axes keep their histories."""
    import matplotlib
    from matplotlib import figure, image, pyplot
    from PIL import Image, ImageShow

    def show(*_: Any, **__: Any) -> None:
        for shown in open_figures():
            if _show is not None:
                _show(shown, "show")
        close_all()

    def show_figure(self: Any, *_: Any, **__: Any) -> None:
        if _show is not None:
            _show(self, "show")
        pyplot.close(self)

    def show_image(self: Any, *_: Any, **__: Any) -> None:
        if _show is not None:
            _show(self, "pil_show")

    def use(backend: Any = None, **_: Any) -> None:
        """The backend stays Agg: there is no display here."""

    pyplot.show = show
    figure.Figure.show = show_figure
    Image.Image.show = show_image
    ImageShow.show = lambda image, *_, **__: show_image(image)  # pyright: ignore[reportAttributeAccessIssue]
    matplotlib.use = pyplot.switch_backend = use  # pyright: ignore[reportAttributeAccessIssue]
    _keep_histories(image)
    patching.wrap(figure.Figure, "savefig", lambda call: _saved(call, call.given["self"]))
    patching.wrap(pyplot, "savefig", lambda call: _saved(call, pyplot.gcf()), "fname")
    patching.wrap(pyplot, "imsave", _image_saved, "fname arr")


def _saved(call: patching.PatchedCall, figure: Any) -> None:
    """A figure in a file. Saved in another size than it is shown in, its picture stands elsewhere in it."""
    path = call.get("fname")
    if not isinstance(path, str | os.PathLike):
        return
    width, height = size(figure)
    trace = history(figure, call.recorder, (round(width), round(height)))
    if trace is not None and set(call.given) & {"bbox_inches", "dpi", "pad_inches"}:
        last = trace.operations[-1]
        arguments = {k: v for k, v in last.arguments.items() if k != "axes"}
        trace = replace(trace, operations=(*trace.operations[:-1], replace(last, arguments=arguments)))
    call.recorder.saved(str(path), trace)


def _image_saved(call: patching.PatchedCall) -> None:
    """``plt.imsave`` of (H, W, 3) pixels; other arrays get the colours of a map."""
    array, path = call.get("arr"), call.get("fname")
    if isinstance(path, str | os.PathLike) and np.ndim(array) == 3:
        call.recorder.saved(str(path), call.recorder.of(array), call.get("format"))


def _keep_histories(image: Any) -> None:
    """``AxesImage.set_data`` copies the pixels; their history is kept on the artist."""
    cls = image._ImageBase
    inner = getattr(cls.set_data, "vtcli_original", cls.set_data)

    def set_data(self: Any, data: Any) -> None:
        from vtcli.sandbox.provenance import recorder as recording

        inner(self, data)
        recorder = recording.current()
        if recorder is not None:
            try:
                setattr(self, MARK, recorder.of(data))
            except Exception as problem:
                recorder.trouble("imshow", problem)

    set_data.vtcli_original = inner  # pyright: ignore[reportFunctionMemberAccess]
    cls.set_data = set_data
