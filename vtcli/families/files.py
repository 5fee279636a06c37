"""Files of a model's folder, looked at before a library opens them: such a folder may come from anybody."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, cast

from vtcli.errors import InputError
from vtcli.foreign import MAX_DEPTH, load_json, read_file

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""Of a file of safetensors, as the library has it."""

_AGAIN = "Copy or download the folder again."
_BY_RUST = ("tokenizer.json",)  # megabytes of pairs; its reader has a bound of its own


def read_json(path: Path) -> Any:
    """Reads a JSON file. Raises ``InputError`` if it cannot be read, is not JSON or is nested too deep."""
    try:
        return load_json(read_file(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}. {_AGAIN}") from error


def require_readable(folder: Path) -> None:
    """Refuses what libraries fail on with errors of their own, or wait for.

    Raises:
        InputError: a link that leads nowhere, a pipe or a device; JSON that is nested too deep; weights that are
            pickles, which may run code; an index or a header of safetensors that goes beyond its folder or its file.
    """
    names = {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    for path in names.values():
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise InputError(f"{path} leads to no file ({error.strerror}). {_AGAIN}") from error
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InputError(f"{path} is a pipe or a device; a model's folder holds plain files. {_AGAIN}")
        if stat.S_ISREG(mode) and path.suffix == ".json" and path.name not in _BY_RUST:
            data = path.read_bytes()
            if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
                read_json(path)
        if stat.S_ISREG(mode) and path.suffix == ".safetensors":
            _require_header(path)
    if INDEX in names:
        index = read_json(names[INDEX])
        shards = cast("Any", index).get("weight_map") if isinstance(index, dict) else None
        if not isinstance(shards, dict):
            raise InputError(f"{names[INDEX]} has no weight_map of names and files. {_AGAIN}")
        if lost := sorted({str(name) for name in cast("dict[str, Any]", shards).values()} - names.keys()):
            raise InputError(f"{names[INDEX]} names {lost[0][:200]!r}, which is not a file of the folder. {_AGAIN}")
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights and (pickled := [n for n in names if n.startswith("pytorch_model") and n.endswith((".bin", ".pt"))]):
        raise InputError(
            f"{folder / pickled[0]} is a pickle, which may run code when it is read. Expected *.safetensors: download "
            "those, or write them with save_pretrained where you trust the file."
        )


def _require_header(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise InputError(
            f"{path} is not a file of safetensors, or it is cut off: its header has {length} bytes. {_AGAIN}"
        )
