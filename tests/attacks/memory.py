"""Family ``mem``: memory, in the process and beside it, and small inputs that unpack to large ones."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from dataclasses import replace

from vtcli.sandbox.types import Setup, Status

from .case import FULL_STOP, Attack, ends

FULL = FULL_STOP | ends(Status.OK, Status.TIMEOUT, Status.LIMIT)
CAP = """
import resource
if resource.getrlimit(resource.RLIMIT_AS)[0] in (-1, resource.RLIM_INFINITY):
    say(got="memory without limit")
    raise SystemExit("not done without a limit")
"""
"""In front of all that fills memory: without a limit the case says so and stops."""


def small(setup: Setup) -> Setup:
    """1 GB of address space, so that the cases are quick and leave the machine alone."""
    return replace(setup, limits=replace(setup.limits, memory_mb=1024, wall_s=10.0))


def filled(name: str, what: str, code: str) -> Attack:
    """Something that fills memory until the limit stops it."""
    return Attack(f"mem.{name}", what, CAP + code, statuses=FULL, setup=small, wall_limit_s=10.0, spoils=True)


CASES = (
    filled("bytearray", "bytearrays without end", "kept = []\nwhile True: kept.append(bytearray(1 << 24))"),
    filled(
        "objects", "small objects without end", "kept = []\nwhile True: kept.append([object() for _ in range(10000)])"
    ),
    filled(
        "numpy_ones", "np.ones of a terabyte", 'import numpy as np\nattempt("ones", lambda: np.ones((10**6, 10**6)))'
    ),
    filled(
        "numpy_empty",
        "np.empty of a terabyte",
        'import numpy as np\nattempt("empty", lambda: np.empty((10**6, 10**6)))',
    ),
    filled("string", "a string times 2**40", 'attempt("string", lambda: "x" * (1 << 40))'),
    filled("integer", "an integer of a gigabyte by shifting", 'attempt("shift", lambda: 1 << (1 << 36))'),
    filled(
        "pil_new",
        "Image.new of 100,000 x 100,000",
        'from PIL import Image\nattempt("new", lambda: Image.new("RGB", (100_000, 100_000)))',
    ),
    filled(
        "pil_resize",
        "resize of the picture to 90,000 x 90,000",
        """
import numpy as np
from PIL import Image
attempt("resize", lambda: Image.fromarray(np.asarray(image_clue_0)).resize((90_000, 90_000)))
""",
    ),
    filled(
        "cv2_resize",
        "cv2.resize to 90,000 x 90,000",
        """
import cv2
import numpy as np
attempt("resize", lambda: cv2.resize(np.asarray(image_clue_0), (90_000, 90_000)).shape)
""",
    ),
    filled(
        "figure",
        "a figure of 200,000 x 200,000 pixels",
        """
import matplotlib.pyplot as plt
attempt("figure", lambda: (plt.figure(figsize=(2000, 2000), dpi=100), plt.plot([1]), plt.savefig("f.png")))
""",
    ),
    filled(
        "mmap",
        "anonymous mappings, also shared ones that fork would not copy",
        """
import mmap
kept = []
while True:
    kept.append(mmap.mmap(-1, 1 << 26))
    kept[-1][:: 4096] = b"x" * len(kept[-1][:: 4096])
""",
    ),
    filled(
        "mlock",
        "locked memory",
        """
buffer = ctypes.create_string_buffer(1 << 27)
if _LIBC.mlockall(3) == 0:
    say(got="mlockall of everything") if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] in (-1, resource.RLIM_INFINITY) else None
_LIBC.munlockall()
""",
    ),
    filled(
        "children",
        "six children of a gigabyte each: limits of a process add up",
        """
made = 0
for _ in range(6):
    try:
        pid = os.fork()
    except OSError:
        continue
    if pid == 0:
        time.sleep(0.5)
        os._exit(0)
    made += 1
if made:
    say(got="children", value=made)
""",
    ),
    filled(
        "png_bomb",
        "a PNG of 114 kB that decodes to 30,000 x 30,000, as an output",
        """
import struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
pack = zlib.compressobj(9)
row = b"\\0" + b"\\0" * (30_000 // 8)
data = b"".join(pack.compress(row * 100) for _ in range(300)) + pack.flush()
open("bomb.png", "wb").write(b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b""))
print("bomb.png")
""",
    ),
    filled(
        "gif_bomb",
        "a GIF of 5,000 frames, a TIFF of lying sizes, an ICO of icons in icons, as outputs",
        """
import io, struct
from PIL import Image
frames = [Image.new("P", (64, 64), n % 250) for n in range(1200)]
frames[0].save("many.gif", save_all=True, append_images=frames[1:], duration=1)
open("lies.tiff", "wb").write(b"II*\\0\\x08\\0\\0\\0\\x03\\0\\0\\1\\4\\0\\1\\0\\0\\0\\xff\\xff\\xff\\x7f\\1\\1\\4\\0\\1\\0\\0\\0\\xff\\xff\\xff\\x7f\\x11\\1\\4\\0\\1\\0\\0\\0\\x08\\0\\0\\0\\0\\0\\0\\0")
open("lies.bmp", "wb").write(b"BM" + struct.pack("<IHHIIiiHHIIiiII", 99, 0, 0, 54, 40, 2**31 - 1, -(2**31), 1, 24, 0, 0, 0, 0, 0, 0))
open("lies.ppm", "wb").write(b"P6 2000000000 2000000000 255\\n")
print("many.gif lies.tiff lies.bmp lies.ppm")
""",
    ),
    filled(
        "zip_bomb",
        "an archive that unpacks to 300 MB in the workspace",
        """
import zipfile
with zipfile.ZipFile("z.zip", "w", zipfile.ZIP_DEFLATED) as z:
    with z.open("zeros", "w") as f:
        for _ in range(75):
            f.write(b"\\0" * 4_000_000)
attempt("unpack", lambda: zipfile.ZipFile("z.zip").extractall("out"))
""",
    ),
    filled(
        "gzip_bomb",
        "zlib that unpacks to 4 GB in memory",
        """
import zlib
data = zlib.compress(b"\\0" * (1 << 26), 9)
for _ in range(3):
    data = zlib.compress(data, 9)
def unpack():
    x = data
    for _ in range(4):
        x = zlib.decompress(x)
    return len([x * 64])
attempt("unpack", unpack)
""",
    ),
    filled(
        "numpy_file",
        "an .npy file with a lying header, and pickles inside",
        """
import io
import numpy as np
head = b"\\x93NUMPY\\x01\\x00" + (118).to_bytes(2, "little") + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\\n"
attempt("load", lambda: np.load(io.BytesIO(head)))
""",
    ),
    Attack(
        "mem.leave_it_full",
        "900 MB kept by a run that ends well: the next run and the others still work",
        """
import numpy as np
hoard = np.ones(100_000_000 // 8)
hoard2 = [bytearray(1000) for _ in range(100_000)]
""",
        after="del hoard, hoard2\n",
        setup=small,
    ),
    Attack(
        "mem.ast_bombs",
        "sources that break parsers and compilers, at run time",
        """
bombs = ["(" * 60_000, "-" * 60_000 + "1", "[" * 90 + "]" * 90, "x" + ".a" * 20_000, "+".join(["1"] * 15_000), "lambda:" * 9_000 + "1",
         "f'{" * 200, "a" + "[0]" * 15_000, "1" * 60_000, "if 1:\\n" + "\\n".join(" " * n + "if 1:" for n in range(1, 120)), "b'" + "\\\\x41" * 9_000 + "'"]
for n, bomb in enumerate(bombs):
    try:
        compile(bomb, "bomb", "exec")
    except (SyntaxError, RecursionError, MemoryError, ValueError, OverflowError) as error:
        say(failed=n, why=type(error).__name__)
""",
        statuses=ends(Status.OK, Status.CRASH, Status.OOM),
        setup=small,
    ),
)
