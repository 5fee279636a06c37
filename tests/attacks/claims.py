"""Family ``forge``: claims about pictures and operations."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from .case import Attack, CaseRecord, Facts
from .forge import forge


def never_verified(seen: CaseRecord, facts: tuple[Facts, ...]) -> list[str]:
    """No picture that was made up may be called verified by the host."""
    lies = [p for p in (*seen.run.images, *seen.then.images) if p.verified and (p.pixels == (66, 6, 66)).all()]
    return ["a made-up picture came back as verified"] if lies else []


def within_the_crop(seen: CaseRecord, facts: tuple[Facts, ...]) -> list[str]:
    """No picture made of the crop (2, 3, 10, 9) may claim to show more of the question's picture than the crop did."""
    boxes = [step.box for p in (*seen.run.images, *seen.then.images) for step in p.operations[-1:] if step.box]
    wide = [b for b in boxes if b[0] < 2 or b[1] < 3 or b[2] > 10 or b[3] > 9]
    return [f"a picture of a crop claims to show {wide[0]}"] if wide else []


CASES: tuple[Attack, ...] = (
    Attack(
        "forge.wider_box",
        "a crop that is wrapped, turned with growth or framed, to claim more of the picture than it showed",
        """
import cv2, numpy as np
from PIL import Image, ImageOps
crop = image_clue_0.crop((2, 3, 10, 9))
wrapped = cv2.warpAffine(np.array(crop), np.float32([[1, 0, 6], [0, 1, 6]]), (20, 18), borderMode=cv2.BORDER_WRAP)
Image.fromarray(wrapped).show()
crop.rotate(45, expand=True).show()
ImageOps.expand(crop, 20).show()
crop.transform((20, 20), Image.EXTENT, (-9, -9, 20, 20)).show()
crop.rotate(90, center=(40, 40)).show()
""",
        extra=within_the_crop,
    ),
    forge(
        "false_operations",
        "a made-up picture with the chain of a real crop",
        """
from PIL import Image
import fcntl
for fd in range(3, 4096):
    try:
        s = os.fstat(fd)
        if stat.S_ISREG(s.st_mode) and not s.st_nlink and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
            os.pwrite(fd, bytes([66, 6, 66]) * (8 * 6), 0)
    except OSError:
        pass
send(frame(images=[[0, 8, 6, "show", "", [["crop", {"box": [2, 3, 10, 9]}, "pil", 0, [2.0, 3.0, 10.0, 9.0]]]]]))
""",
        extra=never_verified,
    ),
    forge(
        "false_lossy_file",
        "a made-up picture with the chain of a crop that was saved as JPEG, and of a figure that shows it",
        """
import fcntl
for fd in range(3, 4096):
    try:
        s = os.fstat(fd)
        if stat.S_ISREG(s.st_mode) and not s.st_nlink and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
            os.pwrite(fd, bytes([66, 6, 66]) * (8 * 6), 0)
    except OSError:
        pass
crop = ["crop", {"box": [2, 3, 10, 9]}, "pil", 0, [2.0, 3.0, 10.0, 9.0]]
for last in (["other", {"kind": "lossy", "format": "jpg"}, "pil", 0, None], ["other", {"kind": "figure", "axes": [0, 0, 8, 6], "images": 1}, "matplotlib", 0, None]):
    send(frame(images=[[0, 8, 6, "show", "", [crop, last]]]))
    break
""",
        extra=never_verified,
    ),
    forge(
        "endless_claims",
        "chains that would take a library hours, or the machine's memory",
        """
import fcntl
for fd in range(3, 4096):
    try:
        s = os.fstat(fd)
        if stat.S_ISREG(s.st_mode) and not s.st_nlink and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
            os.pwrite(fd, bytes([66, 6, 66]) * (8 * 6), 0)
    except OSError:
        pass
def resized(n, library, **more):
    return ["resize", {"size": [5700 + n, 5800], **more}, library, 0, None]
last = ["resize", {"size": [8, 6], "resample": 1}, "pil", 0, None]
slow = [resized(n, "pil", resample=1) if n % 2 else resized(n, "cv2", interpolation=4) for n in range(31)] + [last]
warp = {"kind": "affine", "matrix": [[1e6, 0, 0], [0, 1e6, 0]], "size": [8, 6], "flags": 1, "border": 2}
corner = [["crop", {"box": [0, 0, 2, 2]}, "pil", 0, None], ["warp", warp, "cv2", 0, None]]
odd = [["resize", {"size": [8, 6], "factor": [1, 2, 3]}, "pil", 0, None]]
many = [[0, 8, 6, "show", "", chain] for chain in (slow, corner, odd, slow)]
send(frame(images=many))
""",
        extra=never_verified,
    ),
    forge(
        "stolen_provenance",
        "the attributes of an honest crop put on a made-up picture",
        """
import numpy as np
from PIL import Image
honest = image_clue_0.crop((2, 3, 10, 9))
fake = Image.new("RGB", honest.size, (66, 6, 66))
for key, value in vars(honest).items():
    if key not in ("im", "_im", "_size", "_mode"):
        try:
            setattr(fake, key, value)
        except Exception as error:
            say(failed=key, why=repr(error))
fake.show()
honest.paste((66, 6, 66), (0, 0, *honest.size))
honest.show()
""",
        extra=never_verified,
    ),
    forge(
        "changed_in_place",
        "an honest crop whose pixels are changed behind the library's back",
        """
import numpy as np
from PIL import Image
crop = image_clue_0.crop((2, 3, 10, 9))
other = Image.new("RGB", crop.size, (66, 6, 66))
crop.im = other.im
crop.show()
again = image_clue_0.crop((2, 3, 10, 9))
again.load()
again.putdata([(66, 6, 66)] * (again.width * again.height))
again.show()
""",
        extra=never_verified,
    ),
    forge(
        "reused_identity",
        "a made-up picture at the address where an honest one was",
        """
from PIL import Image
for _ in range(50):
    crop = image_clue_0.crop((2, 3, 10, 9))
    address = id(crop)
    del crop
    kept = [Image.new("RGB", (8, 6), (66, 6, 66)) for _ in range(20)]
    same = [k for k in kept if id(k) == address]
    if same:
        same[0].show()
        break
""",
        extra=never_verified,
    ),
    forge(
        "patched_recorder",
        "the recorder's functions replaced, its records rewritten",
        """
import types
from PIL import Image
for name, module in list(sys.modules.items()):
    if name.startswith("vtcli.sandbox") and ("record" in name or "trace" in name or "patch" in name):
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                setattr(module, key, lambda *a, **k: {"name": "crop", "arguments": {}, "library": "pil", "image": 0})
Image.new("RGB", (8, 6), (66, 6, 66)).show()
""",
        extra=never_verified,
    ),
    forge(
        "patched_pil",
        "PIL's and numpy's functions replaced, so that crops are made up",
        """
import numpy as np
from PIL import Image
fake = Image.new("RGB", (8, 6), (66, 6, 66))
Image.Image.crop = lambda self, box=None: fake
Image.Image.resize = Image.Image.rotate = Image.Image.convert = lambda self, *a, **k: fake
np.asarray = np.array = np.ascontiguousarray = lambda *a, **k: 1 / 0
image_clue_0.crop((2, 3, 10, 9)).show()
""",
        extra=never_verified,
    ),
)
