"""Files of rows that unpack to far more than they are, or whose members are none: each is one plain error."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vtcli.data.importers import sources
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
    path.write_text(json.dumps(ROW) + "\n")
    os.truncate(path, ALLOWED_BYTES + (1 << 20))


def column(path: Path) -> None:
    rows = pa.table({"question": ["q?"] * BLOCKS, "image": [BLOCK] * BLOCKS})
    pq.write_table(rows, path, compression="zstd", use_dictionary=False)


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
    "a line without an end": ("a.jsonl", one_line, "a line has more than"),
    "a field without an end": ("a.csv", one_line, "a line has more than"),
    "pages that unpack a thousandfold": ("a.parquet", column, "a row group unpacks to"),
    "a member before itself": ("a.tar", circle, "damaged or cut off in its member 0.txt"),
    "a sparse member": ("a.tar", sparse, "is sparse"),
    "a link as a member": ("a.tar", members(("0.txt", b"0"), ("0.png", tarfile.SYMTYPE)), "0.png is a link"),
    "a second name as a member": ("a.tar", members(("0.txt", b"0"), ("1.txt", tarfile.LNKTYPE)), "1.txt is a link"),
    "a pipe as a member": ("a.tar", members(("0.png", tarfile.FIFOTYPE)), "special file"),
    "a member twice": ("a.tar", members(("0.txt", b"0"), ("0.txt", b"0")), "two members txt"),
    "a folder": ("a.jsonl", Path.mkdir, "is no file"),
    "a link to nothing": ("a.jsonl", lambda path: path.symlink_to("nowhere"), "cannot be read"),
    "a pipe": ("a.jsonl", pipe, "is no file"),
    "a pipe of pages": ("a.parquet", pipe, "is no file"),
    "a pipe that is packed": ("a.jsonl.gz", pipe, "is no file"),
    "a pipe of members": ("a.tar", pipe, "is no file"),
}


def test_files_that_unpack_beyond_their_bound_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    before = set(Path(tempfile.gettempdir()).glob("vtcli-rows-*"))
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
    assert set(Path(tempfile.gettempdir()).glob("vtcli-rows-*")) <= before


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


def test_the_command_ends_with_one_error_and_code_2(tmp_path: Path) -> None:
    packed(tmp_path / "a.jsonl.gz")
    generate = f"{{_target_: vtcli.data.importers.rows.generate, path: {tmp_path}/a.jsonl.gz, name: own}}"
    words = [f"data.tasks={{own: {{generate: {generate}, train: 2}}}}", f"home={tmp_path}/home", "tracker=none"]
    code = "from vtcli.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "synth", *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and "gunzip -k" in done.stderr and "Traceback" not in done.stderr, done.stderr
