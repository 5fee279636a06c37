"""A model's folder from anybody ends in one plain error; nothing in it is waited for, and no code of it is run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vtcli.errors import InputError
from vtcli.families.files import INDEX, require_readable
from vtcli.families.table import model_type, open_family
from vtcli.plan.architecture import from_folder

HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + b"\0" * 4
DEEP = "[" * 100_000


def folder(place: Path, **files: bytes | str) -> Path:
    """A folder of files by their names, in which ``__`` is a dot."""
    place.mkdir()
    given = {"config__json": '{"model_type": "qwen2_5_vl"}', "model__safetensors": WEIGHTS, **files}
    for name, data in given.items():
        if data:
            (place / name.replace("__", ".")).write_bytes(data.encode() if isinstance(data, str) else data)
    return place


def linked(place: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "model.safetensors").symlink_to(place / "gone")


def piped(name: str) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        (place / name).unlink()
        os.mkfifo(place / name)

    return change


def test_a_models_folder_from_outside_is_one_plain_error(tmp_path: Path) -> None:
    none: Callable[[Path], None] = lambda place: None  # noqa: E731
    index = INDEX.replace(".", "__")
    pickled = {"model__safetensors": "", "pytorch_model__bin": b"\x80\x04cos\nsystem\n(S'touch run'\ntR."}
    cases: dict[str, tuple[dict[str, bytes | str], Callable[[Path], None]]] = {
        "a pickle": (pickled, none),
        "a header of 2^60": ({"model__safetensors": (2**60).to_bytes(8, "little")}, none),
        "a header of 2^31": ({"model__safetensors": (2**31).to_bytes(8, "little") + b"{}"}, none),
        "five bytes": ({"model__safetensors": b"12345"}, none),
        "an index beyond": ({index: json.dumps({"weight_map": {"a": "../w.safetensors"}})}, none),
        "an index to nothing": ({index: json.dumps({"weight_map": {"a": "w.safetensors"}})}, none),
        "an index of a list": ({index: "[]"}, none),
        "a deep index": ({index: DEEP}, none),
        "a deep config": ({"config__json": DEEP}, none),
        "a deep config that closes": ({"config__json": '{"model_type": ' + "[" * 200 + "]" * 200 + "}"}, none),
        "a deep processor": ({"preprocessor_config__json": DEEP}, none),
        "a deep tokenizer's config": ({"tokenizer_config__json": DEEP}, none),
        "a dead link": ({}, linked),
        "weights that are a pipe": ({}, piped("model.safetensors")),
        "a config that is a pipe": ({}, piped("config.json")),
    }
    failures: list[str] = []
    for number, (case, (files, change)) in enumerate(cases.items()):
        place = folder(tmp_path / str(number), **files)
        change(place)
        for ask in (open_family, *((model_type, from_folder) if "config" in case and "tokenizer" not in case else ())):
            try:
                ask(place)
                failures.append(f"{case}: {ask.__name__} takes it")
            except InputError as error:
                failures += [] if str(place) in str(error) else [f"{case}: {ask.__name__} names no place: {error}"]
            except Exception as error:
                failures.append(f"{case}: {ask.__name__} raises {error!r:.200}")
    assert not failures, "\n".join(failures)
    require_readable(folder(tmp_path / "well"))
    (tmp_path / "linked").mkdir()  # as the hub's cache holds a model
    for path in (tmp_path / "well").iterdir():
        (tmp_path / "linked" / path.name).symlink_to(path)
    require_readable(tmp_path / "linked")


def test_a_deep_configuration_is_no_defect_of_the_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="levels"):
        from_folder(folder(tmp_path / "m", config__json=DEEP))
