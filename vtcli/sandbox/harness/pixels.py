"""Objects of the untrusted process to (H, W, 3) uint8 RGB. Runs in that process; the size sent is the array's own, so
an object that lies about its size gains nothing."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtcli.protocols import Pixels


class NotAnImage(Exception):
    """The object is no image; the message has the reason, for the policy."""


def of_pil(image: Image.Image) -> Pixels:
    """RGB of an image of any mode. Deep modes are taken to span their range: 16-bit is divided by 256, 32-bit and
    float values are clipped to 0..255. Transparency is dropped, as ``convert("RGB")`` does."""
    if image.mode.startswith("I;16"):
        return of_array((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        return of_array(np.clip(np.asarray(image), 0, 255).astype(np.uint8))
    return of_array(np.asarray(image if image.mode == "RGB" else image.convert("RGB")))


def is_image_array(array: npt.NDArray[Any]) -> bool:
    """Returns True if an array looks like an image rather than a table. Its shape is (H, W, 1 or 3 or 4), or 2-D from
    16 x 16 up."""
    if array.dtype.kind not in "buif" or array.size == 0:
        return False
    if array.ndim == 3:
        return array.shape[2] in (1, 3, 4) and min(array.shape[:2]) >= 2
    return array.ndim == 2 and min(array.shape) >= 16


def of_array(array: npt.NDArray[Any]) -> Pixels:
    """RGB of (H, W), (H, W, 1), (H, W, 3) or (H, W, 4). Bool and floats up to 1 are scaled to 255, others clipped.
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
    """Returns True if ``of_any`` takes the value. ``type`` decides, because an object may claim any ``__class__``."""
    kind = type(value)
    if issubclass(kind, Image.Image):
        return True
    return issubclass(kind, np.ndarray) and is_image_array(cast(npt.NDArray[Any], value))


def of_any(value: object) -> Pixels:
    """RGB of a PIL image or an array. Raises ``NotAnImage`` for anything else."""
    if issubclass(type(value), Image.Image):
        return of_pil(cast(Image.Image, value))
    if issubclass(type(value), np.ndarray):
        return of_array(cast(npt.NDArray[Any], value))
    raise NotAnImage(f"{type(value).__name__} is no image")
