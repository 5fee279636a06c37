"""What testing a forged claim may cost the host, and that no argument is read by one half of the test only."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from harness_process import scene

from vtcli.sandbox.replay import redo as replay
from vtcli.sandbox.replay.arguments import CannotTell, Work
from vtcli.sandbox.replay.verify import all_checked, judged
from vtcli.sandbox.types import Operation, Picture, Produced

PICTURE = scene(64, 48)
FAR = 7e5


def operation(name: str, library: str = "pil", **arguments: Any) -> Operation:
    return Operation(name, arguments, library, 0)


def drawn(kind: str, library: str = "pil", **arguments: Any) -> Operation:
    return operation("draw", library, kind=kind, **arguments)


ENDLESS = {
    "ellipse": drawn("ellipse", xy=[-FAR, -FAR, FAR, FAR], outline="red"),
    "ellipse, wide": drawn("ellipse", xy=[-9, -9, 90, 90], outline="red", width=2000),
    "arc": drawn("arc", xy=[-FAR, -FAR, FAR, FAR], start=1, end=359),
    "turns of an arc": drawn("arc", xy=[0, 0, 9, 9], start=0, end=1e9),
    "circle": drawn("circle", xy=[1, 1], radius=FAR),
    "rectangle": drawn("rectangle", xy=[-FAR, -FAR, FAR, FAR], outline="red", width=2),
    "line": drawn("line", xy=[0, 0, FAR, FAR]),
    "points": drawn("polygon", xy=[[i % 7, i % 5] for i in range(400)], fill="red"),
    "nested points": drawn("line", xy=[[[0, 0], [1, 1]]]),
    "text": drawn("text", xy=[0, 0], text="W" * 256, font_size=200),
    "font": drawn("text", xy=[0, 0], text="W", font_size=4000),
    "stroke": drawn("text", xy=[0, 0], text="W", font_size=40, stroke_width=500),
    "lines of text": drawn("text", xy=[0, 0], text="W\n" * 128, font_size=200),
    "spacing": drawn("text", xy=[0, 0], text="W\n" * 99, spacing=1e5),
    "shaping": drawn("text", xy=[0, 0], text="W", features=["liga"] * 99),
    "a method": drawn("text", xy=[0, 0], text="W", font="x"),
    "cv2 circle": drawn("circle", "cv2", center=[0, 0], radius=100_000, color=[1, 2, 3]),
    "cv2 ellipse": drawn("ellipse", "cv2", center=[0, 0], axes=[9, 9], angle=0, startAngle=-1e9, endAngle=1e9),
    "cv2 text": drawn("putText", "cv2", text="W" * 256, org=[0, 0], fontFace=0, fontScale=50, color=[1, 2, 3]),
    "cv2 thickness": drawn("line", "cv2", pt1=[0, 0], pt2=[9, 9], color=[1, 2, 3], thickness=5000),
    "blur": operation("filter", kind="GaussianBlur", radius=1e5),
    "median": operation("filter", kind="MedianFilter", size=99),
    "cv2 kernel": operation("filter", "cv2", kind="blur", ksize=[4001, 4001]),
    "cv2 kernel of sigma": operation("filter", "cv2", kind="GaussianBlur", ksize=[0, 0], sigmaX=9999.0),
    "cv2 scale": operation("resize", "cv2", size=[64, 48], interpolation=1, fx=9999.0, fy=9999.0),
    "rows on the way": operation("resize", size=[32768, 1], resample=1),
    "turned": operation("rotate", degrees=45, resample=0, expand=True, center=[0, 0], fill=[0] * 9),
    "warp": operation("warp", method=0, data=[1, 0, 0, 0, 1, 0], size=[32768, 32768]),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_costs_more_than_its_picture_explains_never_reaches_a_library(name: str) -> None:
    picture = scene(64, 2000) if name == "rows on the way" else PICTURE
    work = Work()
    with pytest.raises(CannotTell):
        replay.redone(picture, ENDLESS[name], work)
    assert judged((picture,), [ENDLESS[name]], picture)[0] is None


def worst_drawings(side: int) -> dict[str, Operation]:
    """The dearest drawings on an image of this side that are not refused."""
    far = min(4 * side + 256, 1 << 14)
    zigzag = [far * (-1) ** (i // 2 + i % 2) for i in range(256)]
    whole = {"xy": [-far, -far, far, far], "fill": "red", "width": 255}
    found = {kind: drawn(kind, outline="blue", **whole) for kind in ("ellipse", "rectangle")}
    found |= {kind: drawn(kind, start=1, end=359, **whole) for kind in ("arc", "chord", "pieslice")}
    found |= {f"polygon {w}": drawn("polygon", xy=zigzag, fill="red", outline="blue", width=w) for w in (1, 40)}
    found |= {f"line {w}": drawn("line", xy=zigzag, joint="curve", width=w) for w in (1, 100, 255)}
    found["text"] = drawn("text", xy=[0, 0], text="W" * 200, font_size=140)
    found["stroke"] = drawn("text", xy=[0, 0], text="W" * 30, font_size=256, stroke_width=64)
    found["cv2 text"] = drawn("putText", "cv2", text="W" * 230, org=[0, 9], fontFace=3, fontScale=10, color=[1, 2, 3])
    found["cv2 ellipse"] = drawn(
        "ellipse", "cv2", center=[0, 0], axes=[far, far], angle=3, startAngle=0, endAngle=360, color=9, lineType=16
    )
    return found


@pytest.mark.parametrize("side", [8, 1000])
def test_one_drawing_costs_no_more_than_its_bound(side: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The bound is on work, in nanoseconds as estimated; what they were on this machine is printed."""
    state = np.zeros((side, side, 3), np.uint8)
    for name, each in worst_drawings(side).items():
        work, started = Work(), time.thread_time()
        try:
            replay.redone(state, each, work)
        except CannotTell:
            assert work.spent < 5e7
        with capsys.disabled():
            print(f"\n{side:5d} {name:14s} {1e3 * (time.thread_time() - started):7.1f} ms", end="")
        assert work.spent <= 5e7 + 2.5e5 + 24 * side * side


def test_all_images_of_a_run_share_one_bound() -> None:
    """Four times this chain is too much for one reply, once is not."""
    picture = np.zeros((1000, 1000, 3), np.uint8)
    picture[::7, ::5] = 200
    chain = (operation("filter", kind="MedianFilter", size=5),)
    work = Work()
    median = replay.redone(picture, chain[0], work).state
    assert Work.NANOSECONDS / 4 < work.spent < Work.NANOSECONDS / 2
    shown = [Produced(np.ascontiguousarray(median), "show", operations=chain)] * 4
    plain = Produced(picture, "show")
    found = all_checked([Picture(picture)], [*shown, plain])
    assert [found[0].verified, found[3].verified] == [True, None]
    assert found[-1] is plain


def test_time_that_was_estimated_wrongly_ends_the_tests_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    monkeypatch.setattr(time, "thread_time", lambda: math.inf)
    cut = operation("crop", box=[0, 0, 9, 9])
    assert judged((PICTURE,), [cut], np.ascontiguousarray(PICTURE[:9, :9]), work)[0] is None


# One operation, two meanings: the pixels of one set of arguments, the box of another

ZOOMED = {"box": [40, 20, 56, 32]}
TWO_MEANINGS = {
    "thumbnail and box": operation("resize", thumbnail=[32, 24], size=[32, 24], **ZOOMED),
    "every, of PIL": operation("resize", size=[32, 24], resample=2, every=[0.25, 0.25]),
    "every and factor": operation("resize", factor=2, every=[0.1, 0.1]),
    "every of a fraction": operation("resize", "numpy", every=[2.5, 2.5]),
    "numpy, size": operation("resize", "numpy", every=[2, 2], size=[5, 5]),
    "cv2 box": operation("resize", "cv2", size=[32, 24], interpolation=1, **ZOOMED),
    "cv2 every": operation("resize", "cv2", size=[32, 24], interpolation=1, every=[0.25, 0.25]),
    "rotate, matrix": operation("rotate", degrees=0, resample=0, matrix=[[4, 0, -160], [0, 4, -120]]),
    "rotate, center": operation("rotate", "numpy", degrees=180, center=[0, 0]),
    "rotate, translate": operation("rotate", "numpy", degrees=180, translate=[20, 10]),
    "cv2 degrees": operation("rotate", "cv2", degrees=90, matrix=[[1.0, 0, 0], [0, 1, 0]], size=[64, 48]),
    "warp, kind": operation(
        "warp", method=1, data=[0, 0, 64, 48], size=[64, 48], kind="affine", matrix=[[4, 0, 0], [0, 4, 0]]
    ),
    "cv2 warp, method": operation(
        "warp", "cv2", kind="perspective", matrix=np.eye(3).tolist(), size=[64, 48], method=0, data=[0.2, 0, 9, 0, 1, 3]
    ),
    "blur, size": operation("filter", kind="GaussianBlur", radius=3, size=1),  # no signal counts a filter of size 1
    "enlarged by the sandbox": operation("resize", size=[32, 24], resample=3, by="sandbox"),
    "as it is, and a box": operation("other", kind="unchanged", **ZOOMED),
    "lossy in no format": operation("other", kind="lossy", format="exr"),
}


@pytest.mark.parametrize("name", TWO_MEANINGS)
def test_an_argument_that_the_pixels_do_not_come_from_makes_a_claim_untestable(name: str) -> None:
    claimed = TWO_MEANINGS[name]
    shapes = [PICTURE, PICTURE[::2, ::2], np.rot90(PICTURE, 2)]
    for pixels in shapes:
        verdict, found = judged((PICTURE,), [claimed], np.ascontiguousarray(pixels))
        assert verdict is None
        assert found == (claimed,)


def test_a_conversion_that_changes_the_size_has_no_box() -> None:
    chain = [operation("colour", "cv2", conversion="RGB2YUV_I420")]
    assert judged((PICTURE,), chain, PICTURE)[0] is None
