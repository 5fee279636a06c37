"""The recorder's claims, from the libraries' own calls, and what comes of doing them again."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from harness_process import Player, Ran, scene
from PIL import Image

from vtcli.sandbox.replay.plan import CannotTell, plan
from vtcli.sandbox.replay.redo import redo
from vtcli.sandbox.types import Help, Operation
from vtcli.schema import Json

PICTURE = scene()
HEAD = (
    "import cv2, numpy as np\nimport matplotlib.pyplot as plt\n"
    "from PIL import Image, ImageOps, ImageEnhance, ImageFilter, ImageDraw\n"
)


def judged(
    pictures: Sequence[np.ndarray], operations: Sequence[Operation], pixels: np.ndarray
) -> tuple[bool | None, Sequence[Operation]]:
    """As ``host.verifier`` does it, in this process."""
    try:
        found = plan(operations, [(p.shape[1], p.shape[0]) for p in pictures])
    except CannotTell:
        return None, operations
    return np.array_equal(redo(pictures[found.image], found.steps), pixels), found.operations


def verified(pictures: Sequence[np.ndarray], operations: Sequence[Operation], pixels: np.ndarray) -> bool | None:
    return judged(pictures, operations, pixels)[0]


def png(picture: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()


def shown(play: Player, source: str, **setup: object) -> Ran:
    setup = {"capture": ("show", "pil_show", "files", "value"), **setup}
    ran = play.one(
        HEAD + source,
        pictures=(PICTURE,),
        variables={"image": 0},
        image_files={"in.png": 0},
        files={"in.png": png(PICTURE)},
        **setup,
    )
    assert ran.executed.kind == "ok", ran.executed.error
    assert not ran.troubles
    return ran


# code; names of the chain; the box of the last operation in the picture
CHAINS: dict[str, tuple[str, str, tuple[float, ...] | None]] = {
    "crop": ("image.crop((20, 10, 120, 90))", "crop", (20, 10, 120, 90)),
    "crop of a crop": ("image.crop((20, 10, 220, 190)).crop((5, 6, 50, 60))", "crop crop", (25, 16, 70, 70)),
    "clamped": ("image.crop((-20, 10, 120, 900))", "crop", (0, 10, 120, 240)),
    "reversed corners": ("image.crop((120, 90, 20, 10))", "crop", (20, 10, 120, 90)),
    "rotate": ("image.rotate(90, expand=True)", "rotate", (0, 0, 320, 240)),
    "rotate 30": ("image.rotate(30, expand=True, resample=Image.BICUBIC)", "rotate", (0, 0, 320, 240)),
    "rotate filled": ("image.rotate(-17.5, fillcolor=(255, 0, 0))", "rotate", (0, 0, 320, 240)),
    "crop after rotate": ("image.rotate(90, expand=True).crop((0, 0, 100, 50))", "rotate crop", (270, 0, 320, 100)),
    "transpose": ("image.transpose(Image.TRANSPOSE)", "rotate flip", (0, 0, 320, 240)),
    "transverse": ("image.transpose(Image.TRANSVERSE)", "rotate flip", (0, 0, 320, 240)),
    "pil rotate 270": ("image.transpose(Image.ROTATE_270).crop((0, 0, 10, 20))", "rotate crop", (0, 230, 20, 240)),
    "pil flip": ("image.transpose(Image.FLIP_LEFT_RIGHT).crop((0, 0, 10, 20))", "flip crop", (310, 0, 320, 20)),
    "resize": ("image.resize((100, 50), Image.LANCZOS)", "resize", (0, 0, 320, 240)),
    "resize of a box": ("image.resize((100, 50), box=(10, 20, 110, 70))", "resize", (10, 20, 110, 70)),
    "zoom": ("image.crop((10, 20, 60, 70)).resize((200, 200))", "crop resize", (10, 20, 60, 70)),
    "reduce": ("image.reduce(2)", "resize", (0, 0, 320, 240)),
    "thumbnail": ("t = image.copy()\nt.thumbnail((100, 100))\nt", "resize", (0, 0, 320, 240)),
    "thumbnail, its gap": ("t = image.copy()\nt.thumbnail((50, 50), reducing_gap=1.1)\nt", "resize", (0, 0, 320, 240)),
    "thumbnail without a gap": (
        "t = image.copy()\nt.thumbnail((50, 50), reducing_gap=None)\nt",
        "resize",
        (0, 0, 320, 240),
    ),
    "mirror": ("ImageOps.mirror(image)", "flip", (0, 0, 320, 240)),
    "ops flip": ("ImageOps.flip(image)", "flip", (0, 0, 320, 240)),
    "fit": ("ImageOps.fit(image, (100, 100))", "resize", (40, 0, 280, 240)),
    "fit to the left": ("ImageOps.fit(image, (60, 90), centering=(0, 0.5))", "resize", (0, 0, 160, 240)),
    "contain": ("ImageOps.contain(image, (100, 100))", "resize", (0, 0, 320, 240)),
    "scale": ("ImageOps.scale(image, 1.5)", "resize", (0, 0, 320, 240)),
    "border added": ("ImageOps.expand(image, border=(0, 70)).crop((0, 70, 40, 90))", "other crop", (0, 0, 40, 20)),
    "border cut": ("ImageOps.crop(image, 20)", "crop", (20, 20, 300, 220)),
    "grayscale": ("ImageOps.grayscale(image)", "colour", (0, 0, 320, 240)),
    "convert": ("image.convert('L').crop((1, 2, 30, 40))", "colour crop", (1, 2, 30, 40)),
    "invert": ("ImageOps.invert(image)", "enhance", (0, 0, 320, 240)),
    "autocontrast": ("ImageOps.autocontrast(image, cutoff=2)", "enhance", (0, 0, 320, 240)),
    "equalize": ("ImageOps.equalize(image)", "enhance", (0, 0, 320, 240)),
    "contrast": ("ImageEnhance.Contrast(image).enhance(1.7)", "enhance", (0, 0, 320, 240)),
    "sharpness": ("ImageEnhance.Sharpness(image).enhance(2)", "enhance", (0, 0, 320, 240)),
    "blur": ("image.filter(ImageFilter.GaussianBlur(3))", "filter", (0, 0, 320, 240)),
    "unsharp": ("image.filter(ImageFilter.UnsharpMask(2, 150, 3))", "filter", (0, 0, 320, 240)),
    "sharpen": ("image.filter(ImageFilter.SHARPEN)", "filter", (0, 0, 320, 240)),
    "line": ("ImageDraw.Draw(image).line([(3, 4), (90, 100)], fill='red', width=3)\nimage", "draw", (0, 0, 320, 240)),
    "rectangle": (
        "c = image.crop((10, 10, 200, 200))\nImageDraw.Draw(c).rectangle((5, 5, 50, 60), outline=(255, 0, 0))\nc",
        "crop draw",
        (10, 10, 200, 200),
    ),
    "text": ("ImageDraw.Draw(image).text((9, 9), 'A', fill=(0, 255, 0))\nimage", "draw", (0, 0, 320, 240)),
    "extent": ("image.transform((50, 50), Image.EXTENT, (10, 20, 60, 70))", "warp", (10, 20, 60, 70)),
    "asarray": ("np.asarray(image)[10:90, 20:120]", "crop", (20, 10, 120, 90)),
    "array": ("Image.fromarray(np.array(image)[10:90, 20:120])", "crop", (20, 10, 120, 90)),
    "slice of a slice": ("np.array(image)[10:200, 20:220][6:60, 5:50]", "crop", (25, 16, 70, 70)),
    "every other": ("np.array(image)[10:90:2, 20:120:2]", "crop resize", (20, 10, 120, 90)),
    "copied slice": ("np.array(image)[10:90, 20:120].copy()", "crop", (20, 10, 120, 90)),
    "rot90": ("np.rot90(np.array(image))", "rotate", (0, 0, 320, 240)),
    "rot90 twice, cut": ("np.rot90(np.array(image), 2)[0:40, 0:60]", "crop rotate", (260, 200, 320, 240)),
    "rot90 copied": ("np.rot90(np.array(image))[5:50].copy()", "crop rotate", (270, 0, 315, 240)),
    "fliplr": ("np.fliplr(np.array(image))", "flip", (0, 0, 320, 240)),
    "flipud": ("np.flipud(np.array(image))", "flip", (0, 0, 320, 240)),
    "backwards": ("np.array(image)[::-1, ::-1]", "rotate", (0, 0, 320, 240)),
    "np transpose": ("np.transpose(np.array(image), (1, 0, 2))", "rotate flip", (0, 0, 320, 240)),
    "channels": ("Image.fromarray(np.array(image)[..., ::-1])", "colour", (0, 0, 320, 240)),
    "one channel": ("np.array(image)[:, :, 1]", "colour", (0, 0, 320, 240)),
    "cv2 crop": ("a = cv2.imread('in.png')\nok = cv2.imwrite('o.png', a[10:90, 20:120])", "crop", (20, 10, 120, 90)),
    "codev": (
        "a = cv2.imread('in.png')\nc = a[10:90, 20:120]\nc = cv2.resize(c, None, fx=2, fy=2, "
        "interpolation=cv2.INTER_CUBIC)\nok = cv2.imwrite('processed_1.png', c)",
        "crop resize",
        (20, 10, 120, 90),
    ),
    "cv2 rotate": ("cv2.rotate(np.array(image), cv2.ROTATE_90_CLOCKWISE)", "rotate", (0, 0, 320, 240)),
    "cv2 flip": ("cv2.flip(np.array(image), 1)", "flip", (0, 0, 320, 240)),
    "cv2 resize": ("cv2.resize(np.array(image), (100, 50), interpolation=cv2.INTER_AREA)", "resize", (0, 0, 320, 240)),
    "cv2 factors, size of zeros": (
        "cv2.resize(np.array(image)[10:133, 20:221], (0, 0), fx=1.5, fy=1.5)",
        "crop resize",
        (20, 10, 221, 133),
    ),
    "cv2 factors, size by name": (
        "cv2.resize(np.array(image)[10:133, 20:221], dsize=[0, 9], fx=1.5, fy=1.5)",
        "crop resize",
        (20, 10, 221, 133),
    ),
    "cv2 to rgb": ("cv2.cvtColor(cv2.imread('in.png'), cv2.COLOR_BGR2RGB)[3:50, 4:60]", "crop", (4, 3, 60, 50)),
    "left as bgr": ("cv2.imread('in.png')", "colour", (0, 0, 320, 240)),
    "cv2 gray": ("cv2.cvtColor(cv2.imread('in.png'), cv2.COLOR_BGR2GRAY)", "colour colour", (0, 0, 320, 240)),
    "cv2 turned": (
        "M = cv2.getRotationMatrix2D((160, 120), 30, 1.0)\ncv2.warpAffine(np.array(image), M, (320, 240))",
        "rotate",
        (0, 0, 320, 240),
    ),
    "cv2 shifted": (
        "cv2.warpAffine(np.array(image), np.float32([[1, 0, -50], [0, 1, -40]]), (100, 80))",
        "warp",
        (50, 40, 150, 120),
    ),
    "cv2 blur": ("cv2.GaussianBlur(np.array(image), (5, 5), 0)", "filter", (0, 0, 320, 240)),
    "cv2 brighter": ("cv2.convertScaleAbs(np.array(image), alpha=1.5, beta=10)", "enhance", (0, 0, 320, 240)),
    "canny": ("cv2.Canny(np.array(image.convert('L')), 50, 150)", "colour filter", (0, 0, 320, 240)),
    "cv2 draws": (
        "a = cv2.imread('in.png')\ncv2.rectangle(a, (5, 5), (60, 70), (0, 0, 255), 3)\nok = cv2.imwrite('o.png', a)",
        "colour draw colour",
        (0, 0, 320, 240),
    ),
    "cv2 draws on a copy": (
        "c = np.array(image)[10:90, 20:120].copy()\ncv2.circle(c, (40, 40), 9, (0, 255, 0), 2)\nc",
        "crop draw",
        (20, 10, 120, 90),
    ),
    "saved and read again": (
        "image.crop((20, 10, 120, 90)).save('c.png')\nImage.open('c.png').resize((200, 160)).save('d.png')",
        "crop resize",
        (20, 10, 120, 90),
    ),
    "png in a file named jpg": ("image.crop((20, 10, 120, 90)).save('c.jpg', format='PNG')", "crop", (20, 10, 120, 90)),
    "jpeg": ("image.crop((20, 10, 120, 90)).save('c.jpg', quality=90)", "crop other", (20, 10, 120, 90)),
    "unchanged": ("image.show()", "other", (0, 0, 320, 240)),
    "figure": ("plt.imshow(image.crop((20, 10, 120, 90)))\nplt.show()", "crop other", (20, 10, 120, 90)),
    "figure saved": (
        "plt.imshow(image.crop((20, 10, 120, 90)))\nplt.savefig('f.png')",
        "crop other",
        (20, 10, 120, 90),
    ),
    "imsave": ("plt.imsave('q.png', np.asarray(image)[10:90, 20:120])", "crop", (20, 10, 120, 90)),
    "loaded and left alone": ("image.load()\nimage.crop((20, 10, 120, 90))", "crop", (20, 10, 120, 90)),
    "figure, axes off": (
        "plt.figure(figsize=(8, 8))\nplt.imshow(np.array(image)[10:90, 20:120])\nplt.axis('off')\nplt.show()",
        "crop other",
        (20, 10, 120, 90),
    ),
    "figure zoomed by limits": (
        "plt.imshow(image)\nplt.xlim(49.5, 149.5)\nplt.ylim(99.5, 29.5)\nplt.show()",
        "crop other",
        (50, 30, 150, 100),
    ),
}


SLANTED = {"rotate 30", "rotate filled", "cv2 turned"}
TESTED = [
    name
    for name, (_, names, _) in CHAINS.items()
    if name == "unchanged" or (set(names.split()) <= {"crop", "rotate", "flip", "resize"} and name not in SLANTED)
]


def test_a_chain_is_seen_and_gives_the_same_pixels_when_done_again(play: Player, subtests: pytest.Subtests) -> None:
    for name, (source, names, box) in CHAINS.items():
        with subtests.test(name):
            ran = shown(play, source)
            image = ran.executed.images[-1]
            assert " ".join(o.name for o in image.operations) == names
            assert {o.image for o in image.operations} == {0}
            assert image.operations[-1].box == pytest.approx(box, abs=0.01)
            if name not in TESTED:
                assert verified((PICTURE,), image.operations, image.pixels) is None
                continue
            assert verified((PICTURE,), image.operations, image.pixels) is True
            forged = [replace(o, box=(1.0, 2.0, 3.0, 4.0)) for o in image.operations]
            ours = judged((PICTURE,), forged, image.pixels)[1]
            for claimed, found in zip(image.operations, ours, strict=True):
                assert found.box == pytest.approx(claimed.box, abs=0.01)
            other = scene(seed=9)
            assert verified((other,), image.operations, image.pixels) is not True


def test_one_pixel_one_level_off_is_another_picture(play: Player) -> None:
    for name in TESTED:
        image = shown(play, CHAINS[name][0]).executed.images[-1]
        off = image.pixels.copy()
        off[3, 4, 1] ^= 1
        assert verified((PICTURE,), image.operations, off) is False, name


def test_a_claim_for_other_pixels_is_refuted(play: Player, subtests: pytest.Subtests) -> None:
    for name in ["crop", "codev", "resize of a box", "rot90 copied"]:
        with subtests.test(name):
            image = shown(play, CHAINS[name][0]).executed.images[-1]
            forged = image.pixels.copy()
            forged[10:20, 10:30] = (255, 0, 255)
            assert verified((PICTURE,), image.operations, forged) is not True
            assert verified((PICTURE,), image.operations, forged[1:]) is False


# Values that mean something to one operation or another, and nothing to most.
FOREIGN: dict[str, list[Json]] = {
    "box": [[40, 20, 90, 70]], "every": [[2, 2], [0.25, 0.25]], "factor": [2, 0.5], "thumbnail": [[32, 32]],
    "size": [[32, 32]], "fx": [2.0], "fy": [2.0], "reducing_gap": [3.0], "requested": [[-5, 0, 900, 9]],
    "by": ["sandbox"], "degrees": [90], "expand": [True], "center": [[0, 0]], "translate": [[20, 10]],
    "resample": [0], "matrix": [[[4, 0, -99], [0, 4, -99]]], "flags": [16], "border": [1], "fill": [1],
    "method": [0, 1], "data": [[4, 0, 9, 0, 4, 9], [9, 9, 40, 40]], "kind": ["affine", "unchanged"],
    "axis": ["vertical"], "conversion": ["swap"], "index": [0],
    "xy": [[0, 0, 1, 1]], "radius": [0], "axes": [[0, 0, 9, 9]], "images": [1],
    "another": [1],
}  # fmt: skip
OF_NO_USE = {"every", "matrix", "method", "data", "xy", "index", "conversion", "axis", "another"}


def test_an_argument_more_never_moves_the_box_of_what_is_verified(play: Player) -> None:
    """Every operation that a real run recorded, with any argument that it had not."""
    for name in TESTED:
        image = shown(play, CHAINS[name][0]).executed.images[-1]
        chain = image.operations
        boxes = judged((PICTURE,), chain, image.pixels)[1]
        for at, honest in enumerate(chain):
            for key in FOREIGN.keys() - honest.arguments.keys():
                for value in FOREIGN[key]:
                    forged = replace(honest, arguments={**honest.arguments, key: value})
                    tried = [*chain[:at], forged, *chain[at + 1 :]]
                    verdict, found = judged((PICTURE,), tried, image.pixels)
                    assert not (verdict and key in OF_NO_USE), (name, forged)
                    if verdict is True:
                        assert [f.box for f in found] == [b.box for b in boxes], (name, forged)


UNTOLD = {
    "pixels written": "a = np.array(image)\na[:20] = 0\nImage.fromarray(a[10:]).show()",
    "a few rows of many written": (
        "a = np.array(image.resize((1800, 1400)))\na[503:505, 203:900] = (255, 0, 0)\n"
        "Image.fromarray(a).crop((200, 500, 900, 600)).show()"
    ),
    "jpeg in a file named png": "image.save('o.png', format='JPEG')\nImage.open('o.png').show()",
    "jpeg in a file named jfif": "image.save('o.jfif')\nImage.open('o.jfif').show()",
    "jpeg in the input's file": "image.save('in.png', 'JPEG')\nImage.open('in.png').show()",
    "jpeg by imsave": "plt.imsave('q.png', np.asarray(image), format='jpeg')\nImage.open('q.png').show()",
    "pixels put": "image.putpixel((3, 4), (255, 0, 0))\nimage.show()",
    "pixels accessed": "p = image.load()\nfor i in range(20): p[i, i] = (255, 0, 0)\nimage.show()",
    "pixels of a file accessed": "i = Image.open('in.png')\np = i.load()\np[3, 3] = (255, 0, 0)\ni.show()",
    "figure cut on saving": "plt.imshow(image)\nplt.savefig('f.png', bbox_inches='tight')",
    "pasted": "image.paste((255, 0, 0), (3, 4, 90, 80))\nimage.show()",
    "kernel": "Image.fromarray(cv2.filter2D(np.array(image), -1, np.ones((3, 3)) / 9)).show()",
    "padded": "ImageOps.pad(image, (100, 100)).show()",
    "perspective": "cv2.warpPerspective(np.array(image), np.eye(3), (90, 80), borderValue=(9, 9, 9))",
    "in place of a crop": "a = np.array(image)\ncv2.line(a[10:90, 20:120], (0, 0), (50, 50), (255, 0, 0), 3)\na[5:95]",
    "scipy": "from scipy import ndimage\nndimage.rotate(np.array(image), 90)",
    "two in a figure": "f, (a, b) = plt.subplots(1, 2)\na.imshow(image)\nb.imshow(image.rotate(90))\nplt.show()",
    "merged": "Image.merge('RGB', image.split()[::-1]).show()",
    "arithmetic": "Image.fromarray((np.array(image) * 0.5).astype(np.uint8)).show()",
    "made up": "Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8)).show()",
}


def test_what_cannot_be_done_again_is_not_judged(play: Player, subtests: pytest.Subtests) -> None:
    for name in UNTOLD:
        with subtests.test(name):
            image = shown(play, UNTOLD[name]).executed.images[-1]
            assert verified((PICTURE,), image.operations, image.pixels) is None


def test_the_log_has_every_operation_in_order_also_without_an_image(play: Player) -> None:
    source = (
        "a = np.array(image)\nb = np.rot90(a)\nc = image.rotate(10).crop((0, 0, 9, 9))\n"
        "d = np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8)\ne = cv2.flip(d, 0)\nprint(1)"
    )
    ran = shown(play, source)
    assert [(o.name, o.library, o.image) for o in ran.executed.operations] == [
        ("rotate", "numpy", 0),
        ("rotate", "pil", 0),
        ("crop", "pil", 0),
        ("flip", "cv2", None),
    ]
    assert ran.executed.operations[0].arguments == {"degrees": 270}
    assert ran.executed.operations[1].arguments["degrees"] == 350  # clockwise
    large = shown(play, "a = np.array(image.resize((1800, 1400)))\na")
    assert [o.name for o in large.executed.operations] == ["resize"]  # and no sampling of ours


def test_scipy_turns_the_way_numpy_does(play: Player) -> None:
    found = shown(
        play, "from scipy import ndimage\nx = ndimage.rotate(np.array(image), 90), np.rot90(np.array(image))\nprint(1)"
    )
    assert [o.arguments["degrees"] for o in found.executed.operations] == [270, 270]
    same = "a = np.array([[1.0, 2], [3, 4]])\nprint(np.allclose(ndimage.rotate(a, 90), np.rot90(a)))"
    ran = shown(play, f"from scipy import ndimage\n{same}")
    assert ran.output == "True\n"


def test_a_clamped_box_is_said_and_can_be_left(play: Player) -> None:
    source = "image.crop((-20, 10, 120, 900))"
    ran = shown(play, source)
    assert "clamped to (0, 10, 120, 240)" in ran.executed.notes[0]
    assert ran.executed.images[0].operations[0].arguments["requested"] == [-20, 10, 120, 900]
    assert ran.executed.images[0].pixels.shape == (230, 120, 3)
    plain = shown(play, source, help=Help(clamp=False)).executed
    assert not plain.notes
    assert plain.images[0].pixels.shape == (890, 140, 3)
    assert verified((PICTURE,), plain.images[0].operations, plain.images[0].pixels) is None  # padded with black


def test_histories_last_from_run_to_run_and_files_that_change_lose_theirs(play: Player) -> None:
    runs = play(
        HEAD + "c = image.crop((20, 10, 120, 90))",
        "c.rotate(90, expand=True).save('r.png')",
        "import os\nImage.effect_noise((80, 100), 50).convert('RGB').save('x.png')\n"
        "open('r.png', 'wb').write(open('x.png', 'rb').read())\nImage.open('r.png').show()",
        pictures=(PICTURE,),
        variables={"image": 0},
        capture=("files", "pil_show"),
    )
    assert [o.name for o in runs[1].executed.images[0].operations] == ["crop", "rotate"]
    assert [o.name for i in runs[2].executed.images for o in i.operations if o.image is not None] == []


def test_the_libraries_own_calls_are_not_the_codes(play: Player) -> None:
    ran = shown(play, "plt.imshow(image)\nplt.savefig('f.png')\nprint(1)")
    assert ran.executed.operations == ()
    ran = shown(play, "image.rotate(90, expand=True)")
    assert [o.name for o in ran.executed.operations] == ["rotate"]  # not the transpose inside


# code; the part of the picture that its result shows: never more than the image before it showed
COVERED = {
    "a wrapped warp": (
        "c = np.array(image.crop((100, 80, 140, 120)))\n"
        "cv2.warpAffine(c, np.float32([[1, 0, 20], [0, 1, 20]]), (90, 90), borderMode=cv2.BORDER_WRAP)",
        (100, 80, 140, 120),
    ),
    "a slanted turn that grows": ("image.crop((100, 80, 140, 120)).rotate(45, expand=True)", (100, 80, 140, 120)),
    "a border": ("ImageOps.expand(image.crop((100, 80, 140, 120)), 50)", (100, 80, 140, 120)),
    "a zoomed-out extent": (
        "image.crop((100, 80, 140, 120)).transform((50, 50), Image.EXTENT, (-40, -40, 80, 80))",
        (100, 80, 140, 120),
    ),
    "a crop after it": (
        "image.crop((100, 80, 140, 120)).rotate(45, expand=True).crop((0, 0, 28, 57))",
        (100, 80, 140, 120),
    ),
}


def test_the_box_is_clipped_to_each_image_on_the_way(play: Player, subtests: pytest.Subtests) -> None:
    for name, (source, (x1, y1, x2, y2)) in COVERED.items():
        with subtests.test(name):
            box = shown(play, source).executed.images[-1].operations[-1].box
            assert box is not None
            assert x1 <= box[0] <= box[2] <= x2 and y1 <= box[1] <= box[3] <= y2, box


def test_an_image_that_shows_nothing_of_the_picture_has_no_box(play: Player) -> None:
    source = "image.crop((100, 80, 140, 120)).rotate(90, center=(300, 300))"
    steps = shown(play, source).executed.images[-1].operations
    assert [(step.name, step.box is None) for step in steps] == [("crop", False), ("rotate", True)]
