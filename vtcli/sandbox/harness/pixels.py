"""Objects of the untrusted process to (H, W, 3) uint8 RGB. Runs in that process; the size sent is the array's own, so
an object that lies about its size gains nothing."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from vtcli.protocols import Pixels


class NotAnImage(Exception):
    """The object is no image; the message says why, for the policy."""


class _ArrowArray(ctypes.Structure):
    """``ArrowArray`` of Arrow's C data interface."""


_ArrowArray._fields_ = [  # pyright: ignore[reportPrivateUsage]
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    *((name, ctypes.c_void_p) for name in ("dictionary", "release", "private_data")),
]
_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype, _POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_EMPTY = Image.new("L", (1, 1))
NO_ROOM = np.empty(0, np.uint8)


def base_image(image: Image.Image) -> Image.Image:
    """The same pixels as a plain ``Image.Image``: overridden methods and properties of a subclass are left behind."""
    Image.Image.load(image) if type(image) is Image.Image else image.load()
    core = image.im
    if type(core) is not type(_EMPTY.im):
        raise NotAnImage("an image object without pixels")
    plain = Image.Image._new(_EMPTY, core)  # pyright: ignore[reportPrivateUsage]
    plain.palette = image.palette
    if "transparency" in image.info:
        plain.info["transparency"] = image.info["transparency"]
    return plain


def image_of(picture: Pixels) -> Image.Image:
    """A PIL image of an input picture (H, W, 3). Where its pixels are four bytes apart, as PIL's own are, the image
    stands on the picture's memory: nothing is copied until PIL writes to it, and PIL copies all of it then."""
    height, width, _ = picture.shape
    if picture.strides != (width * 4, 4, 1):
        return Image.fromarray(picture)
    memory = np.lib.stride_tricks.as_strided(picture, (height, width, 4), writeable=False)
    core = Image.core.map_buffer(memory, (width, height), "raw", 0, ("RGB", 0, 1))
    image = Image.new("RGB", (0, 0))._new(core)  # pyright: ignore[reportPrivateUsage]
    image.readonly = 1
    return image


def of_pil(image: Image.Image, room: npt.NDArray[np.uint8] = NO_ROOM) -> Pixels:
    """RGB of an image of any mode. Deep modes are taken to span their range: 16-bit is divided by 256, 32-bit and
    float values are clipped to 0..255. Transparency is dropped, as ``convert("RGB")`` does. ``room``: bytes (N,) at
    whose beginning the result may be put."""
    plain = base_image(image)
    if plain.mode.startswith("I;16"):
        return of_array((np.asarray(plain) >> 8).astype(np.uint8))
    if plain.mode in ("I", "F"):
        return of_array(np.clip(np.asarray(plain), 0, 255).astype(np.uint8))
    if plain.mode != "RGB":
        plain = plain.convert("RGB")
    return _packed(plain, room)


def _packed(image: Image.Image, room: npt.NDArray[np.uint8]) -> Pixels:
    """The pixels of an RGB image, which PIL keeps four bytes apart: by OpenCV from PIL's own memory, a quarter of the
    time that PIL's encoder takes for it. Where the rows are not one behind the other, which PIL refuses to export, the
    encoder does it, at once: ``tobytes`` makes pieces and joins them."""
    try:
        _, capsule = image.__arrow_c_array__()  # owns the memory as long as it is there
    except (ValueError, MemoryError):
        return _encoded(image)
    pixels = _ArrowArray.from_address(_POINTER(capsule, b"arrow_array")).children[0].contents
    length = image.height * image.width * 4
    if pixels.length != length:
        raise NotAnImage("an image whose pixels are not all there")
    memory = (ctypes.c_ubyte * length).from_address(pixels.buffers[1])
    view = np.ctypeslib.as_array(memory).reshape(image.height, image.width, 4)
    place = room[: image.height * image.width * 3]
    fits = len(place) == image.height * image.width * 3
    return cast(Pixels, cv2.cvtColor(view, cv2.COLOR_RGBA2RGB, place.reshape(*view.shape[:2], 3) if fits else None))


def _encoded(image: Image.Image) -> Pixels:
    encoder = Image._getencoder("RGB", "raw", "RGB")  # pyright: ignore[reportPrivateUsage]
    encoder.setimage(image.im, (0, 0, *image.size))
    length = image.height * image.width * 3
    _, _, data = encoder.encode(length)
    if len(data) != length:
        raise NotAnImage("an image whose pixels are not all there")
    return np.frombuffer(data, np.uint8).reshape(image.height, image.width, 3)


def is_image_array(array: npt.NDArray[Any]) -> bool:
    """Whether an array looks like an image rather than a table: (H, W, 1 or 3 or 4), or 2-D of 16 x 16 and up."""
    if array.dtype.kind not in "buif" or array.size == 0:
        return False
    if array.ndim == 3:
        return array.shape[2] in (1, 3, 4) and min(array.shape[:2]) >= 2
    return array.ndim == 2 and min(array.shape) >= 16


def of_array(array: npt.NDArray[Any]) -> Pixels:
    """RGB of (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): bool and floats up to 1 are scaled to 255, others clipped.
    Raises ``NotAnImage`` for other shapes and types."""
    plain = np.asarray(array).view(np.ndarray)
    if plain.ndim == 3 and plain.shape[2] == 1:
        plain = plain[:, :, 0]
    if plain.ndim not in (2, 3) or (plain.ndim == 3 and plain.shape[2] not in (3, 4)) or plain.dtype.kind not in "buif":
        raise NotAnImage(f"an array of shape {plain.shape} and type {plain.dtype} is no image")
    if plain.size == 0:
        raise NotAnImage(f"an image of shape {plain.shape} has no pixels; the slice or box was empty")
    if plain.dtype.kind == "b":
        plain = plain.astype(np.uint8) * 255
    elif plain.dtype.kind == "f":
        finite = np.nan_to_num(plain, posinf=255.0, neginf=0.0)
        scale = 255.0 if finite.max() <= 1.0 else 1.0
        plain = np.clip(np.rint(finite * scale), 0, 255).astype(np.uint8)
    elif plain.dtype != np.uint8:
        plain = np.clip(plain, 0, 255).astype(np.uint8)
    if plain.ndim == 2:
        plain = np.repeat(plain[:, :, None], 3, axis=2)
    return np.ascontiguousarray(plain[:, :, :3])


def is_image(value: object) -> bool:
    """Whether ``of_any`` takes it. ``type`` is asked, never the object, which may claim any ``__class__``."""
    kind = type(value)
    if issubclass(kind, Image.Image):
        return True
    return issubclass(kind, np.ndarray) and is_image_array(cast(npt.NDArray[Any], value))


def of_any(value: object, room: npt.NDArray[np.uint8] = NO_ROOM) -> Pixels:
    """RGB of a PIL image or an array. ``room``: see ``of_pil``. Raises ``NotAnImage`` for anything else."""
    if issubclass(type(value), Image.Image):
        return of_pil(cast(Image.Image, value), room)
    if issubclass(type(value), np.ndarray):
        return of_array(cast(npt.NDArray[Any], value))
    raise NotAnImage(f"{type(value).__name__} is no image")
