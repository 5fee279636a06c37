"""Figures, shown images, files, values: what comes out of a run, and what is left out and said."""

from __future__ import annotations

import numpy as np
import pytest
from harness_process import Player, Ran, scene

from vtcli.sandbox.harness.harness import compiled
from vtcli.sandbox.types import RunLimits

PICTURE = scene()
HEAD = "import os, numpy as np, matplotlib.pyplot as plt\nfrom PIL import Image\n"


def ran(play: Player, source: str, capture: tuple[str, ...], **setup: object) -> Ran:
    return play.one(HEAD + source, pictures=(PICTURE,), variables={"image": 0}, capture=capture, **setup)


def shapes(found: Ran) -> list[tuple[int, ...]]:
    return [i.pixels.shape for i in found.executed.images]


def test_every_open_figure_is_shown_once(play: Player) -> None:
    found = ran(play, "plt.figure(); plt.plot([1, 2])\nplt.figure(); plt.plot([2])\nplt.show()\nplt.show()", ("show",))
    assert shapes(found) == [(480, 640, 3)] * 2
    assert found.executed.images[0].pixels.flags.c_contiguous


def test_figures_are_shown_however_they_are(play: Player, subtests: pytest.Subtests) -> None:
    for call in ["plt.show(block=False)", "plt.gcf().show()", "import pylab; pylab.show()"]:
        with subtests.test(call):
            found = ran(play, f"import matplotlib\nmatplotlib.use('TkAgg')\nplt.plot([1])\n{call}", ("show",))
            assert len(found.executed.images) == (0 if "pylab" in call and not shapes(found) else 1)


def test_figures_do_not_last(play: Player) -> None:
    runs = play(
        HEAD + "plt.imshow(image)",
        "print(plt.get_fignums())",
        pictures=(PICTURE,),
        variables={"image": 0},
    )
    assert runs[1].output == "[]\n"


def test_a_giant_figure_is_left_out_before_it_is_drawn(play: Player) -> None:
    found = ran(play, "plt.figure(figsize=(2000, 2000))\nplt.show()", ("show",))
    assert (found.executed.kind, found.executed.images_dropped) == ("ok", 1)
    assert "8192 pixels a side" in found.executed.notes[0]


def test_shown_images_keep_their_pixels(play: Player) -> None:
    found = ran(play, "image.show()\nimage.convert('L').show()\nimage.convert('RGBA').show()", ("pil_show",))
    assert np.array_equal(found.executed.images[0].pixels, PICTURE)
    assert np.array_equal(found.executed.images[2].pixels, PICTURE)
    assert [i.origin for i in found.executed.images] == ["pil_show"] * 3


def test_what_is_not_captured_says_so(play: Player) -> None:
    found = ran(play, "image.show()", ("show",))
    assert found.executed.notes == ("Image.show() shows nothing here",)
    assert found.executed.kind == "no_output"


def test_files_come_in_the_order_of_writing_and_only_changed_ones(play: Player) -> None:
    source = (
        "image.save('b.png')\nimport time\ntime.sleep(0.02)\nos.makedirs('d')\nimage.rotate(9).save('d/a.jpg')\n"
        "open('notes.txt', 'w').write('x')\nos.symlink('/etc/passwd', 'l.png')\nos.mkfifo('p.png')\n"
        "open('broken.png', 'wb').write(b'no')"
    )
    runs = play(
        HEAD + source,
        "image.crop((0, 0, 50, 50)).save('b.png')",
        pictures=(PICTURE,),
        variables={"image": 0},
        capture=("files",),
    )
    assert [i.name for i in runs[0].executed.images] == ["b.png", "d/a.jpg"]
    assert runs[0].executed.images_dropped == 3
    said = "\n".join(runs[0].executed.notes)
    assert "l.png is not shown" in said and "p.png is not shown" in said and "broken.png is not shown" in said
    assert [(i.name, i.pixels.shape) for i in runs[1].executed.images] == [("b.png", (50, 50, 3))]


def test_only_files_whose_names_are_printed(play: Player) -> None:
    source = "for n in 'abc':\n    image.save(n + '_1.png')\nprint('see b_1.png and', os.path.abspath('a_1.png'))"
    found = ran(play, source, ("printed_files",))
    assert [i.name for i in found.executed.images] == ["b_1.png", "a_1.png"]


VALUES = {
    "an image": ("image.crop((0, 0, 50, 40))", (40, 50, 3), ""),
    "an array": ("np.asarray(image)", (240, 320, 3), ""),
    "a gray array": ("np.asarray(image.convert('L'))", (240, 320, 3), ""),
    "floats": ("np.asarray(image) / 255", (240, 320, 3), ""),
    "a small table": ("np.eye(3)", None, "array([[1., 0., 0.],"),
    "a number": ("1 + 1", None, "2"),
    "text": ("'a' + 'b'", None, "'ab'"),
    "nothing": ("None", None, ""),
    "an assignment": ("x = image", None, ""),
    "axes": ("plt.imshow(image)", (480, 640, 3), ""),
    "lines": ("plt.plot([1, 2])", (480, 640, 3), ""),
    "a long list": ("list(range(10**6))", None, "[0, 1, 2"),
    "deep pixels": ("Image.fromarray(np.asarray(image.convert('L')).astype(np.uint16) * 256)", (240, 320, 3), ""),
}


def test_the_last_value(play: Player, subtests: pytest.Subtests) -> None:
    for name, (source, shape, text) in VALUES.items():
        with subtests.test(name):
            found = ran(play, source, ("value",))
            assert shapes(found) == ([shape] if shape else [])
            assert found.executed.value.startswith(text) and bool(text) == bool(found.executed.value)
            assert len(found.executed.value) <= RunLimits().kept_output_chars + 3


def test_images_in_a_list_are_shown_each(play: Player) -> None:
    assert shapes(ran(play, "[image, image.crop((0, 0, 50, 50))]", ("value",))) == [(240, 320, 3), (50, 50, 3)]


MANY = "".join(f"n{i} = 0\n" for i in range(300))  # names whose places need more than a byte


ASSIGNMENTS = [
    ("result = 1", True),
    ("x = result = 1", True),
    ("x, (y, result) = 1, (2, 3)", True),
    ("for result in []: pass", True),
    ("with f() as result: pass", True),
    ("import numpy as result", True),
    ("from numpy import pi as result", True),
    ("[result := n for n in (1,)]", True),
    ("def f():\n    global result\n    result = 1", True),
    ("result += 1", True),
    (MANY + "result = 1", True),
    ("", False),
    ("print(result)", False),
    ("result.x = 1\nresult[0] = 1", False),
    ("def f():\n    result = 1\n    return result", False),
    ("results = 1\nprint(results, result)", False),
    (MANY + "print(result)", False),
]


def test_what_gives_a_name_a_value_is_seen(subtests: pytest.Subtests) -> None:
    for source, assigns in ASSIGNMENTS:
        with subtests.test(source[-40:]):
            assert compiled(source, "<code>", value=False).assigns("result") is assigns
            assert compiled(source, "<code>", value=True).assigns("result") is assigns


def test_result_is_taken_only_from_the_run_that_sets_it(play: Player) -> None:
    runs = play(
        HEAD + "result = image.rotate(90, expand=True)",
        "x = 1",
        "result = 7",
        pictures=(PICTURE,),
        variables={"image": 0},
        capture=("result",),
    )
    assert [len(r.executed.images) for r in runs] == [1, 0, 0]
    assert (runs[0].executed.images[0].origin, runs[0].executed.images[0].name) == ("result", "result")
    assert "`result` holds no image" in runs[2].executed.notes[0]


def test_limits_on_number_side_aspect_and_bytes(play: Player) -> None:
    source = "for _ in range(5): image.show()"
    found = ran(play, source, ("pil_show",), limits=RunLimits(images=2))
    assert (len(found.executed.images), found.executed.images_dropped) == (2, 3)
    found = ran(play, source, ("pil_show",), limits=RunLimits(image_side=300))
    assert (len(found.executed.images), found.executed.images_dropped) == (0, 5)
    found = ran(play, "image.crop((0, 0, 300, 1)).show()", ("pil_show",))
    assert "factor of 200" in found.executed.notes[0]
    found = ran(play, "image.resize((4000, 4000)).show()\nimage.show()", ("pil_show",), limits=RunLimits(images_mb=1))
    assert shapes(found) == [(240, 320, 3)]


def test_a_small_image_is_enlarged_and_that_is_said(play: Player) -> None:
    found = ran(play, "image.crop((0, 0, 20, 10)).show()", ("pil_show",), limits=RunLimits(image_min_side=28))
    assert shapes(found) == [(28, 56, 3)]
    assert "enlarged to 56 x 28" in found.executed.notes[0]
    assert [dict(o.arguments).get("by") for o in found.executed.images[0].operations] == [None, "sandbox"]
    assert [o.name for o in found.executed.operations] == ["crop"]


LIES = {
    "size overridden": (
        "class L(Image.Image):\n    size = (10**6, 10**6)\nl = L()\nl.__dict__.update(image.__dict__)\nl.show()"
    ),
    "no pixels": "Image.Image().show()",
    "pixels of another kind": "i = Image.Image()\ni._im = i.im = [1]\ni.show()",
    "array with hostile methods": (
        "class A(np.ndarray):\n    def __array_finalize__(self, o): pass\n    shape = property(lambda s: 1/0)\n"
        "np.zeros((20, 20, 3), np.uint8).view(A)"
    ),
    "claims to be an image": "class C:\n    __class__ = Image.Image\n    size = (4, 4)\nC()",
    "repr exits": "class R:\n    def __repr__(self): raise SystemExit(0)\nR()",
}


def test_an_object_that_lies_gains_nothing(play: Player, subtests: pytest.Subtests) -> None:
    for name, source in LIES.items():
        with subtests.test(name):
            runs = play(
                HEAD + source,
                "print('well')",
                pictures=(PICTURE,),
                variables={"image": 0},
                capture=("value", "pil_show"),
            )
            for image in runs[0].executed.images:
                assert type(image.pixels) is np.ndarray
                assert image.pixels.nbytes == np.prod(image.pixels.shape) < 10**6
            assert runs[1].output == "well\n"
