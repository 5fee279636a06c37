"""Files of rows that unpack to far more than they are, or whose members are none: each is one plain error."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vtcli.data.generators import canvas
from vtcli.data.importers import pages, sources, tars, text_rows, unpacking
from vtcli.data.importers.problems import RowProblem
from vtcli.data.importers.unpacking import ALLOWED_BYTES, MAX_RATIO
from vtcli.errors import InputError

ROW = {"question": "q?", "answer": "a", "image": "0.png"}
BLOCK = bytes(1 << 20)
BLOCKS = (ALLOWED_BYTES >> 20) + 1


def packed(path: Path) -> None:
    """Members of a gzip file may follow each other."""
    path.write_bytes(gzip.compress(json.dumps(ROW).encode() + b"\n") + gzip.compress(BLOCK) * BLOCKS)


def one_line(path: Path) -> None:
    """A sparse file, so that no disk is filled."""
    path.touch()
    os.truncate(path, ALLOWED_BYTES + (1 << 20))


def column(path: Path) -> None:
    rows = pa.table({"question": ["q?"] * BLOCKS, "image": [BLOCK] * BLOCKS})
    pq.write_table(rows, path, compression="zstd", use_dictionary=False)


def varint(number: int) -> bytes:
    """A number as Parquet's footer holds it: zigzag, 7 bits a byte."""
    number *= 2
    digits = [number >> shift & 127 for shift in range(0, max(1, number.bit_length()), 7)]
    return bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]])


def forged(path: Path) -> None:
    """A footer that states a large size of the packed column, from which the bound is computed."""
    column(path)
    data, meta = path.read_bytes(), pq.ParquetFile(path).metadata
    image = meta.row_group(0).column(1)
    unpacked = b"\x16" + varint(image.total_uncompressed_size) + b"\x16"
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    stated = footer.replace(unpacked + varint(image.total_compressed_size), unpacked + varint(1 << 40), 1)
    path.write_bytes(data[: -8 - len(footer)] + stated + len(stated).to_bytes(4, "little") + b"PAR1")
    assert pq.ParquetFile(path).metadata.row_group(0).column(1).total_compressed_size == 1 << 40


def modest(path: Path) -> None:
    """A footer that states small sizes of pages that are large."""
    column(path)
    data, meta = path.read_bytes(), pq.ParquetFile(path).metadata
    footer = stated = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    for size in (meta.row_group(0).column(1).total_uncompressed_size, meta.row_group(0).total_byte_size):
        stated = stated.replace(b"\x16" + varint(size), b"\x16" + varint(1000))
    path.write_bytes(data[: -8 - len(footer)] + stated + len(stated).to_bytes(4, "little") + b"PAR1")
    assert pq.ParquetFile(path).metadata.row_group(0).total_byte_size == 1000


def page(path: Path, size: int) -> None:
    """A page of 2 MB whose header states another size."""
    pq.write_table(pa.table({"question": [b"q" * (2 << 20)]}), path, compression="zstd", use_dictionary=False)
    data = path.read_bytes()
    (header,) = pages._headers(os.open(path, os.O_RDONLY), pq.ParquetFile(path).metadata.row_group(0).column(0))
    assert data[4:6] == b"\x15\x00" and header[2] > 2 << 20  # the kind of the page, then its size
    was = b"\x15" + varint(header[2])
    forged = data.replace(was, (b"\x15" + varint(size)), 1)
    start = 4 + forged[4:].index(b"\x15" + varint(size))
    # as long as before, so that the footer's places hold: the number is written with blank digits
    digits = varint(size)
    while len(digits) < len(was) - 1:
        digits = bytes([*digits[:-1], digits[-1] | 128, 0])
    path.write_bytes(data[:start] + b"\x15" + digits + data[start + len(was) :])


def header(name: str, size: int) -> bytes:
    """A member's header whose size is a number of any sign (base 256, as GNU tar writes large ones)."""
    info = tarfile.TarInfo(name)
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" + (256**11 + size).to_bytes(11, "big") if size < 0 else head[124:136]
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def circle(path: Path) -> None:
    """A member of -512 bytes: the next header is the same one."""
    path.write_bytes(header("0.txt", -512) + bytes(1024))


def sparse(path: Path) -> None:
    """A member of 8 bytes on the disk that stands for 1024."""
    info = tarfile.TarInfo("0.txt")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,8"}
    info.pax_headers |= {"GNU.sparse.size": "1024", "GNU.sparse.numblocks": "1", "GNU.sparse.name": "0.txt"}
    info.size = 8
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(b"12345678"))
    path.write_bytes(path.read_bytes() + bytes(4096))


def members(*listed: tuple[str, bytes]) -> Callable[[Path], None]:
    """A tar file of members of a name and a kind."""

    def make(path: Path) -> None:
        with tarfile.open(path, "w") as tar:
            for name, kind in listed:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, "0.txt"
                tar.addfile(info)

    return make


def pipe(path: Path) -> None:
    os.mkfifo(path)


FILES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a gzip bomb": ("a.jsonl.gz", packed, f"at most {MAX_RATIO} times"),
    "a gzip bomb of a table": ("a.csv.gz", packed, "gunzip -k"),
    "a gzip bomb of a list": ("a.json.gz", packed, "gunzip -k"),
    "a header without an end": ("a.csv", one_line, "expected a header"),
    "pages that unpack a thousandfold": ("a.parquet", column, "a row group unpacks to"),
    "pages whose size is forged": ("a.parquet", forged, "a row group unpacks to"),
    "pages of a modest footer": ("a.parquet", modest, "a row group unpacks to"),
    "a page that states 2 GB": ("a.parquet", lambda path: page(path, (1 << 31) - 1), "unpacks to 2047 MB"),
    "a member before itself": ("a.tar", circle, "damaged or cut off in its member 0.txt"),
    "a sparse member": ("a.tar", sparse, "is sparse"),
    "a link as a member": ("a.tar", members(("0.txt", b"0"), ("0.png", tarfile.SYMTYPE)), "0.png is a link"),
    "a second name as a member": ("a.tar", members(("0.txt", b"0"), ("1.txt", tarfile.LNKTYPE)), "1.txt is a link"),
    "a pipe as a member": ("a.tar", members(("0.png", tarfile.FIFOTYPE)), "special file"),
    "a member twice": ("a.tar", members(("0.txt", b"0"), ("0.txt", b"0")), "two members txt"),
    "a folder": ("a.jsonl", Path.mkdir, "is not a file"),
    "a link to nothing": ("a.jsonl", lambda path: path.symlink_to("nowhere"), "cannot be read"),
    "a pipe": ("a.jsonl", pipe, "is not a file"),
    "a pipe of pages": ("a.parquet", pipe, "is not a file"),
    "a pipe that is packed": ("a.jsonl.gz", pipe, "is not a file"),
    "a pipe of members": ("a.tar", pipe, "is not a file"),
}


def test_files_that_unpack_beyond_their_bound_are_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "temporary"
    left.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(left))
    wrong: dict[str, str] = {}
    for number, (what, (name, make, said)) in enumerate(FILES.items()):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        make(path)
        try:
            wrong[what] = f"{sources.open_source(str(path.parent / '*'), 'train').rows} rows"
        except InputError as error:
            if said not in str(error) or str(path) not in str(error):
                wrong[what] = str(error)
        shutil.rmtree(path.parent)
    assert not wrong
    assert not list(left.iterdir())


def bad_rows(path: Path, rows: str | None = None) -> tuple[int, list[int]]:
    """The number of rows, and the numbers of those that are too long."""
    source, bad = text_rows.open_text(path, rows), list[int]()
    for row in range(source.rows):
        try:
            source.read(row)
        except RowProblem as problem:
            bad += [row] if problem.reason == "a row that is too long" else []
    return source.rows, bad


def test_a_row_that_is_too_long_costs_no_other_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rows, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr(text_rows, "BLOCK_BYTES", 64)
    long = ROW | {"question": "q" * 1500}
    texts = [json.dumps(row) for row in (ROW, long, ROW, long)]
    found: dict[str, tuple[int, list[int]]] = {}
    for end in ("", "\n"):
        lines = tmp_path / f"a{len(end)}.jsonl"
        lines.write_text("\n".join(texts) + end)
        table = tmp_path / f"a{len(end)}.csv"
        table.write_text("question,answer\nq?,a\n" + "q" * 1500 + ",a\nq?,a\n" + '"' + "q" * 1500 + '",a' + end)
        found |= {path.name: bad_rows(path) for path in (lines, table)}
    begins = tmp_path / "begins.jsonl"  # one object over several lines, for all that its first line shows
    begins.write_text("\n".join([texts[1], texts[0]]))
    assert found == dict.fromkeys(found, (4, [1, 3])) and len(found) == 4
    assert bad_rows(begins) == (2, [0])


def test_a_list_on_one_line_is_bounded_by_its_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rows, "MAX_ROW_BYTES", 1000)
    (tmp_path / "list.json").write_text(json.dumps([ROW] * 100))
    (tmp_path / "object.json").write_text(json.dumps({"data": [ROW] * 100}))
    assert bad_rows(tmp_path / "list.json") == bad_rows(tmp_path / "object.json", "data") == (100, [])
    with pytest.raises(InputError, match=r"is one JSON object.*reading\.rows, one of data"):
        text_rows.open_text(tmp_path / "object.json")


def test_a_value_that_a_dictionary_holds_once_is_not_unpacked_for_all_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bound, count = tmp_path / "a.parquet", 4 << 20, 100
    pq.write_table(pa.table({"question": ["q" * (1 << 20)] * count, "number": range(count)}), path, compression="zstd")
    monkeypatch.setattr(unpacking, "ALLOWED_BYTES", bound)
    source = sources.ParquetRows(path)
    tracemalloc.start()
    try:
        assert [len(row["question"]) for row in source.texts(["question"])] == [1 << 20] * count
        _, texts = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert [source.read(row)["number"] for row in range(count)] == list(range(count))
        _, rows = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert texts < 3 * bound and rows < 3 * bound  # a batch and the next one


def test_a_page_that_states_less_than_it_has_is_a_damaged_one(tmp_path: Path) -> None:
    page(tmp_path / "a.parquet", 1000)
    with pytest.raises(RowProblem, match="a page of the Parquet file is damaged"):
        sources.open_source(str(tmp_path / "a.parquet"), "train").read(0)


def lists(path: Path, values: pa.Array, ends: list[int], **how: Any) -> sources.ParquetRows:
    """A file of lists of ``values``, each up to one of ``ends``."""
    column = pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), values)
    pq.write_table(pa.table({"options": column}), path, compression="zstd", store_schema=False, **how)
    return sources.ParquetRows(path)


def test_a_list_that_names_one_text_many_times_costs_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "ALLOWED_BYTES", 4 << 20)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000 + [1, 0], pa.int32()), ["q" * (1 << 20), "b"])
    source = lists(tmp_path / "a.parquet", texts, [20_000, 20_001, 20_002])
    with pytest.raises(RowProblem, match=r"row 0 of .* has more than 4 MB") as found:
        source.read(0)
    assert found.value.reason == "a row that is too long"
    assert [source.read(row)["options"] for row in (1, 2)] == [["b"], ["q" * (1 << 20)]]
    assert [row.get("options") for row in source.texts(["options"])] == [None, ["b"], ["q" * (1 << 20)]]


def test_a_list_of_millions_that_pack_to_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "ALLOWED_BYTES", 4 << 20)
    many = 400_000
    prefixed = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
    fixed = pa.array([b"q" * 1000] * 5_000, pa.binary(1000))
    for values, how in (
        (pa.nulls(many, pa.int8()), {}),
        (pa.array([7] * many), {}),
        (pa.array([f"{'q' * 5_000}{number}" for number in range(1_000)]), prefixed),
        (fixed, {}),
    ):
        with pytest.raises(InputError, match="a row group unpacks to"):
            lists(tmp_path / "a.parquet", values, [len(values)], **how)


def test_rows_of_one_file_are_the_same_however_its_pages_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pairs = pa.map_(pa.string(), pa.string())
    table = pa.table(
        {
            "text": ["u", "u", None],
            "map": pa.array([[("a", "x"), ("b", "x")], None, [("a", "x")]], pairs),
            "struct": [{"list": ["q", "q"], "bytes": b"1"}, {"list": [], "bytes": None}, None],
            "lists": [[["a"], ["b", "a"]], [], None],
            "images": [[{"bytes": b"xx", "path": "p"}], [{"bytes": None, "path": "p"}] * 3, []],
        }
    )
    ways: list[dict[str, Any]] = [
        *({"compression": name} for name in ("none", "snappy", "gzip", "brotli", "lz4", "zstd")),
        *({"data_page_version": "2.0", "use_dictionary": dictionary} for dictionary in (True, False)),
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
        {"write_page_index": True, "write_page_checksum": True, "store_schema": False},
    ]
    for how in ways:
        pq.write_table(table, path, row_group_size=2, **how)
        source = sources.ParquetRows(path)
        assert [source.read(row) for row in range(3)] == table.to_pylist(), how


def test_members_of_one_row_are_read_in_linear_time(tmp_path: Path) -> None:
    def calls(count: int) -> int:
        """Functions and generators of the reader that are entered for one row of so many members."""
        path, entered = tmp_path / f"{count}.tar", 0
        members(*((f"0.{number}", b"0") for number in range(count)))(path)

        def count_entered(frame: FrameType, event: str, _: object) -> None:
            nonlocal entered
            entered += event == "call" and frame.f_code.co_filename == tars.__file__

        before = sys.getprofile()
        sys.setprofile(count_entered)
        try:
            assert tars.TarRows(path).rows == 1
        finally:
            sys.setprofile(before)
        return entered

    assert calls(400) < 3 * calls(200)


def test_a_sample_of_a_log_that_is_larger_than_its_archive_states_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as log, log.open("samples/1.json", "w") as member:
        for _ in range(BLOCKS):
            member.write(BLOCK)
    with pytest.raises(RowProblem, match="more than 256 MB"):
        sources.open_source(str(path), "train").read(0)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02") + 24  # the size that the list of members states
    data[at : at + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(RowProblem, match="not of the 1000 bytes"):
        sources.open_source(str(path), "train").read(0)


def test_rows_that_pack_well_are_read(tmp_path: Path) -> None:
    text = (json.dumps(ROW) + "\n").encode() * 100_000  # 5 MB, 300 times its packed size
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    assert len(text) > MAX_RATIO * (tmp_path / "a.jsonl.gz").stat().st_size
    source = sources.open_source(str(tmp_path / "a.jsonl.gz"), "train")
    assert (source.rows, source.read(99_999)) == (100_000, ROW)


def archive(*listed: tuple[str, bytes, bytes], mode: Any = "w") -> Callable[[Path], None]:
    """A tar file of members of a name, a kind and bytes."""

    def make(path: Path) -> None:
        with tarfile.open(path, mode) as tar:
            for name, kind, data in listed:
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.size = kind, "0.txt", len(data)
                tar.addfile(info, io.BytesIO(data))

    return make


def zipped(*listed: tuple[str, int]) -> Callable[[Path], None]:
    """A zip file of members of a name and so many megabytes."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, blocks in listed:
                with packed.open(name, "w") as member:
                    for _ in range(blocks):
                        member.write(BLOCK)

    return make


def of_bytes(data: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(data)

    return make


def stream(packer: Any) -> Callable[[Path], None]:
    return lambda path: of_bytes(packer.compress(json.dumps(ROW).encode() + b"\n" + BLOCK * 5))(path)


def long_name(path: Path) -> None:
    """A packed tar file whose first header states a name of 64 MB."""
    info = tarfile.TarInfo("long")
    info.type, info.size = tarfile.XHDTYPE, 64 << 20
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + BLOCK * 64))


def small_column(path: Path) -> None:
    """As ``column`` and ``modest``, of 5 MB."""
    pq.write_table(pa.table({"image": [BLOCK] * 5}), path, compression="zstd", use_dictionary=False)
    data, meta = path.read_bytes(), pq.ParquetFile(path).metadata
    footer = stated = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    for size in (meta.row_group(0).column(0).total_uncompressed_size, meta.row_group(0).total_byte_size):
        stated = stated.replace(b"\x16" + varint(size), b"\x16" + varint(1000))
    path.write_bytes(data[: -8 - len(footer)] + stated + len(stated).to_bytes(4, "little") + b"PAR1")


HUB: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "pictures that unpack a thousandfold": (
        "train.zip",
        zipped(*((f"{i}.png", 1) for i in range(5))),
        "more than 4 MB",
    ),
    "a member above its folder": ("train.zip", zipped(("0.png", 1), ("/etc/1.png", 1)), "leads out of its folder"),
    "pages of a modest footer": ("train-00000-of-00001.parquet", small_column, "a row group unpacks to"),
    "the same by another ending": ("train.gpq", small_column, "a row group unpacks to"),
    "rows that unpack a thousandfold": ("train.jsonl.gz", stream(gzip), "unpacks to more than 4 MB"),
    "the same by xz": ("train.jsonl.xz", stream(lzma), "unpacks to more than 4 MB"),
    "the same by bzip2": ("train.jsonl.bz2", stream(bz2), "unpacks to more than 4 MB"),
    "a packing without a size": (
        "train.jsonl.zst",
        lambda p: p.write_bytes(b"\x28\xb5\x2f\xfd" + b"0" * 9) and None,
        "zstd",
    ),
    "a cut file": ("train.jsonl.gz", lambda p: p.write_bytes(gzip.compress(b"{}\n" * 999)[:-9]) and None, "cut off"),
    "a link": ("train.tar", archive(("0.txt", b"0", b"x"), ("1.txt", tarfile.SYMTYPE, b"")), "1.txt is a link"),
    "a device": ("train.tar", archive(("0.txt", b"0", b"x"), ("1.txt", tarfile.CHRTYPE, b"")), "special file"),
    "a path from the root": ("train.tar", archive(("0.txt", b"0", b"x"), ("/etc/1.txt", b"0", b"")), "leads out"),
    "a packed member": ("train.tar", archive(("0.json.gz", b"0", gzip.compress(b"{}"))), "packed once more"),
    "a name of 64 MB": ("train.tar.gz", long_name, "a header in it states 64 MB"),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which `datasets` works."""
    folder = tmp_path / "cache"
    for name in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, name, str(folder / name))
    return folder


def test_archives_of_a_set_are_bounded_before_they_are_unpacked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "ALLOWED_BYTES", 4 << 20)
    wrong: dict[str, str] = {}
    for number, (what, (name, make, expected)) in enumerate(HUB.items()):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        make(path)
        for scheme in ("hub", "stream") if path.suffix != ".tar" else ("hub",):
            table = path.suffix in (".parquet", ".gpq")
            said = "is packed, and a stream" if scheme == "stream" and not table else expected
            try:
                wrong[what] = f"{sources.open_source(f'{scheme}:{path.parent}', 'train').rows} rows"
            except InputError as error:
                if said not in str(error) or str(path.parent) not in str(error):
                    wrong[what] = str(error)
        shutil.rmtree(path.parent)
    assert not wrong
    assert not [file for file in (cache / "EXTRACTED_DATASETS_PATH").rglob("*") if file.is_file()]


def test_archives_of_a_set_are_read(tmp_path: Path, cache: Path) -> None:
    rows = [{"question": "q?", "answer": str(number)} for number in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    members = [(f"{number}.json", b"0", json.dumps(row).encode()) for number, row in enumerate(rows)]
    for name, data in (("train.jsonl.gz", gzip.compress(text)), ("train.jsonl.xz", lzma.compress(text))):
        (tmp_path / name[-2:]).mkdir()
        (tmp_path / name[-2:] / name).write_bytes(data)
        source = sources.open_source(f"hub:{tmp_path}/{name[-2:]}", "train")
        assert [source.read(row) for row in range(source.rows)] == rows
    (tmp_path / "tar").mkdir()
    archive(*members)(tmp_path / "tar" / "train.tar")
    source = sources.open_source(f"hub:{tmp_path}/tar", "train")
    assert [source.read(row)["json"] for row in range(source.rows)] == rows
    (tmp_path / "zip").mkdir()
    named = [{"file_name": f"{number}.png"} | row for number, row in enumerate(rows)]
    with zipfile.ZipFile(tmp_path / "zip" / "train.zip", "w") as packed:
        for row in named:
            packed.writestr(row["file_name"], canvas.png(np.full((20, 30, 3), 90, np.uint8)))
        packed.writestr("metadata.jsonl", "\n".join(map(json.dumps, named)))
    source = sources.open_source(f"hub:{tmp_path}/zip", "train")
    assert [source.read(row)["answer"] for row in range(source.rows)] == ["0", "1", "2"]
    assert cache.is_dir()


def test_the_command_ends_with_one_error_and_code_2(tmp_path: Path) -> None:
    packed(tmp_path / "a.jsonl.gz")
    generate = f"{{_target_: vtcli.data.importers.rows.generate, path: {tmp_path}/a.jsonl.gz, name: own}}"
    words = [f"data.tasks={{own: {{generate: {generate}, train: 2}}}}", f"home={tmp_path}/home", "tracker=none"]
    code = "from vtcli.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "synth", *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and "gunzip -k" in done.stderr and "Traceback" not in done.stderr, done.stderr
