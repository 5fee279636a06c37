"""The one decoder and the one resize: parity with Qwen's rule, bad input, and storage by content."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngImageFile, PngInfo
from qwen_views import sizing

from vtcli.errors import InputError
from vtcli.store import images


def _bytes(image: Image.Image, **save: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **{"format": "PNG", **save})  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def _gradient(height: int = 40, width: int = 60) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 4, y * 6, (x + y) * 2], axis=2).astype(np.uint8)


@settings(max_examples=300)
@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.sampled_from([(56 * 56, 14 * 14 * 4 * 1280), (112 * 112, 224 * 224), (28 * 28, 28 * 28), (3136, 1003520)]),
)
def test_smart_resize_is_the_processors_rule(height: int, width: int, limits: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as theirs

    try:
        expected = theirs(height, width, 28, *limits)
    except ValueError:
        with pytest.raises(InputError, match="200 times"):
            images.smart_resize(height, width, 28, *limits)
        return
    assert images.smart_resize(height, width, 28, *limits) == expected


def test_smart_resize_by_hand() -> None:
    assert sizing()(100, 150) == (112, 140)  # 100/28 = 3.57 -> 4; 150/28 = 5.36 -> 5
    # 1000 x 1000, at most 112*112: shrink = 1000/112, both sides floor(112/28) = 4
    assert images.smart_resize(1000, 1000, 28, 3136, 112 * 112) == (112, 112)
    # 10 x 20 rounds to 0 x 1: grow = sqrt(3136/200) = 3.96, ceil(39.6/28) = 2, ceil(79.2/28) = 3
    assert sizing()(10, 20) == (56, 84)


def test_resize_equals_the_slow_processors_bicubic() -> None:
    pixels = _gradient(100, 150)
    expected = np.array(Image.fromarray(pixels).resize((140, 112), resample=3))
    assert np.array_equal(images.resize(pixels, 112, 140), expected)


@each_case("mode", ["L", "1", "P", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    grey = Image.fromarray(np.full((30, 40, 3), 255, np.uint8)).convert(mode)
    form = "PNG" if mode in ("L", "1", "P") else "JPEG"
    pixels = images.decode(_bytes(grey, format=form), "x")
    assert pixels.shape == (30, 40, 3)
    assert pixels.dtype == np.uint8
    assert pixels.min() >= 253


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = np.array([[0, 257 * 100, 65535]], np.uint16)
    for form in ("PNG", "TIFF"):
        pixels = images.decode(_bytes(Image.fromarray(deep), format=form), "deep")
        assert pixels[0, :, 0].tolist() == [0, 100, 255]


@each_case(("kind", "told"), [(np.float32, "floating-point"), (np.int32, "signed or 32-bit")])
@each_case("check", [images.decode, images.check, images.check_ends])
def test_values_of_no_known_range_are_refused_and_not_shown_black(kind: type, told: str, check: Any) -> None:
    data = _bytes(Image.fromarray(np.array([[0, 1, 200]], kind)), format="TIFF")
    with pytest.raises(InputError, match=f"The image of row 4 has {told} values, .* Save it with 8 bits"):
        check(data, "of row 4")


def test_alpha_lies_over_white() -> None:
    layer = np.zeros((1, 2, 4), np.uint8)
    layer[0, 1] = (200, 0, 0, 255)
    assert images.decode(_bytes(Image.fromarray(layer)), "x")[0].tolist() == [[255, 255, 255], [200, 0, 0]]


def _oriented(file_format: str, source: str) -> bytes:
    """A landscape image, 40 x 20 as stored, that is shown after a quarter turn."""
    exif, saved = Image.Exif(), PngInfo()
    exif[0x0112] = 6
    profile = b"\nexif\n%8d\n" % len(exif.tobytes()) + exif.tobytes().hex().encode()
    xmp = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    if source == "xmp":
        saved.add_itxt("XML:com.adobe.xmp", xmp)
    elif source == "profile":
        saved.add_text("Raw profile type exif", profile, zip=True)
    if source == "exif":
        return _bytes(Image.new("RGB", (40, 20), "red"), format=file_format, exif=exif)
    return _bytes(Image.new("RGB", (40, 20), "red"), format=file_format, pnginfo=saved)


@each_case(
    ("file_format", "source"),
    [*((name, "exif") for name in ("PNG", "JPEG", "WEBP", "TIFF")), ("PNG", "profile"), ("PNG", "xmp")],
)
def test_sizes_are_those_of_the_upright_image_wherever_its_orientation_stands(
    tmp_path: Path, file_format: str, source: str
) -> None:
    data = _oriented(file_format, source)
    assert images.decode(data, "x").shape == (40, 20, 3)
    assert images.size(data, "x") == (20, 40)
    store = images.ImageStore(tmp_path, sizing())
    ref = store.add_encoded(data, "x")
    assert (ref.width, ref.height) == (20, 40)
    assert store.full(ref).shape == (40, 20, 3)


def test_sizes_are_read_without_decoding_a_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow decodes a whole PNG on its way to an orientation that stands behind the pixels."""
    png = _bytes(Image.new("L", (40, 20)), format="PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    body = b"eXIf" + exif.tobytes()[6:]
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    end = png.index(b"IEND") - 4
    behind = png[:end] + chunk + png[end:]
    assert images.decode(behind, "here").shape == (40, 20, 3)
    decoded: list[tuple[int, int]] = []
    load = PngImageFile.load
    monkeypatch.setattr(PngImageFile, "load", lambda image: (decoded.append(image.size), load(image))[1])
    assert images.size(behind, "here") == (20, 40)
    assert max(decoded, default=(1, 1)) == (1, 1)


def test_exif_orientation_is_applied() -> None:
    image = Image.fromarray(np.zeros((20, 40, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn
    assert images.decode(_bytes(image, format="JPEG", exif=exif), "x").shape == (40, 20, 3)


def _png_claiming(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_001, 60_000])  # just above the limit; above Pillow's own
def test_bombs_are_refused_by_their_header(side: int) -> None:
    for check in (images.decode, images.check):
        with pytest.raises(InputError, match=r"page 3.*100 million"):
            check(_png_claiming(side, side), "page 3")


@each_case("check", [images.decode, images.check])
def test_broken_bytes_name_their_place(check) -> None:
    png, jpeg = _bytes(Image.fromarray(_gradient())), _bytes(Image.fromarray(_gradient()), format="JPEG")
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 0xFF
    for data in (b"", b"no image", png[: len(png) // 2], bytes(flipped), jpeg[: len(jpeg) // 2], png[:20]):
        with pytest.raises(InputError, match="row 7"):
            check(data, "row 7")


def test_store_is_addressed_by_content(tmp_path: Path) -> None:
    store = images.ImageStore(tmp_path, sizing(56 * 56, 112 * 112))
    pixels = _gradient(100, 150)
    ref = store.add(pixels)
    assert store.add(pixels.copy()) == ref
    assert (ref.width, ref.height) == (150, 100)
    assert (ref.view_width, ref.view_height) == (112, 84)  # shrink = sqrt(15000/12544) = 1.094: 91.4 -> 84, 137 -> 112
    assert len(list(tmp_path.rglob("*.png"))) == 2
    assert hashlib.sha256(store.path(ref.full).read_bytes()).hexdigest() == ref.full
    fresh = images.ImageStore(tmp_path, sizing(56 * 56, 112 * 112))
    assert np.array_equal(fresh.full(ref), pixels)
    assert np.array_equal(fresh.view(ref), images.resize(pixels, 84, 112))


def test_store_needs_no_second_file_when_nothing_is_resized(tmp_path: Path) -> None:
    store = images.ImageStore(tmp_path)
    ref = store.add(_gradient(56, 84), parent=0, transform={"op": "rotate", "angle": 90})
    assert ref.full == ref.view
    assert len(list(tmp_path.rglob("*.png"))) == 1
    assert ref.parent == 0
    assert ref.transform == {"op": "rotate", "angle": 90}
    with pytest.raises(ValueError, match="read-only"):
        store.view(ref)[0, 0] = 0


@each_case("shape", [(56, 84), (300, 500)])  # its own view, and one that is resized
def test_an_encoded_picture_is_kept_as_it_came_and_seen_as_if_decoded(tmp_path: Path, shape: tuple[int, int]) -> None:
    def store(name: str) -> images.ImageStore:
        return images.ImageStore(tmp_path / name, sizing(784, 40_000))

    pixels = _gradient(*shape)
    data = _bytes(Image.fromarray(pixels), compress_level=9)
    one, two = store("kept"), store("made")
    kept, made = one.add_encoded(data, "here"), two.add(pixels)
    assert one.path(kept.full).read_bytes() == data
    assert (kept.view_width, kept.view_height) == (made.view_width, made.view_height)
    for reader in (one, store("kept")):  # from the cache and from the file
        assert np.array_equal(reader.full(kept), pixels)
        assert np.array_equal(reader.view(kept), two.view(made))


def test_a_damaged_picture_that_must_be_resized_is_not_kept(tmp_path: Path) -> None:
    data = _bytes(Image.fromarray(_gradient(300, 500)))
    with pytest.raises(InputError, match="here"):
        images.ImageStore(tmp_path, sizing(784, 40_000)).add_encoded(data[: len(data) // 2], "here")
    assert not list(tmp_path.rglob("*.png"))


def test_a_damaged_or_missing_file_is_noticed(tmp_path: Path) -> None:
    ref = images.ImageStore(tmp_path).add(_gradient(56, 84))
    path = images.ImageStore(tmp_path).path(ref.full)
    path.write_bytes(images.encode_png(_gradient(56, 56)))
    with pytest.raises(InputError, match="damaged"):
        images.ImageStore(tmp_path).full(ref)
    path.unlink()
    with pytest.raises(InputError, match="does not exist"):
        images.ImageStore(tmp_path).full(ref)


def test_cache_stays_within_its_limit(tmp_path: Path) -> None:
    store = images.ImageStore(tmp_path, cache_mb=0)
    refs = [store.add(np.full((56, 56, 3), value, np.uint8)) for value in range(5)]
    assert [int(store.full(ref)[0, 0, 0]) for ref in refs] == list(range(5))
    assert len(store._cache) == 1  # pyright: ignore[reportPrivateUsage]


@each_case("shape", [(0, 5, 3), (5, 0, 3), (1, 201, 3), (201, 1, 3)])
def test_a_shape_that_no_model_can_be_shown_has_an_error_of_that_kind(tmp_path: Path, shape) -> None:
    store = images.ImageStore(tmp_path, partial(images.smart_resize, factor=28, min_pixels=56 * 56, max_pixels=10**6))
    with pytest.raises(images.ImageShapeError, match=f"{shape[1]} x {shape[0]} pixels cannot be shown"):
        store.add(np.zeros(shape, np.uint8))


@each_case("pixels", [np.zeros((5, 5), np.uint8), np.zeros((5, 5, 3))])
def test_add_refuses_what_is_not_rgb(tmp_path: Path, pixels) -> None:
    with pytest.raises(InputError, match="uint8"):
        images.ImageStore(tmp_path).add(pixels)
