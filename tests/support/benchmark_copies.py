"""Miniature copies of benchmarks, in their exact public formats."""

from __future__ import annotations

import base64
import csv
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fakes import make_pixels

from vtcli.benchmarks.benchmark import Benchmark
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.store.images import encode_png

NAMES = compose.options("benchmark")


@functools.cache
def shipped() -> dict[str, Benchmark]:
    job = compose.load("eval", [f"benchmark=[{','.join(NAMES)}]", "eval.model=none"])
    return convert(job.values["benchmark"], dict[str, Benchmark], "benchmark")


def png(seed: int) -> bytes:
    return encode_png(make_pixels(seed, 56, 56))


def b64(seed: int) -> str:
    return base64.b64encode(png(seed)).decode()


def tsv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """As VLMEvalKit's files: tab separated, images in base64."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return path


def parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """As ``datasets`` writes them: an image is a struct of bytes and path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def struct(seed: int) -> dict[str, Any]:
    return {"bytes": png(seed), "path": f"{seed}.png"}


def vstar_rows(count: int = 3) -> list[dict[str, Any]]:
    kinds = ("direct_attributes", "relative_position")
    return [
        {
            "index": i,
            "question": f"What colour is thing {i}?",
            "A": "red",
            "B": "blue",
            "C": "" if i % 2 else "green",
            "D": "" if i % 2 else "grey",
            "answer": "AB"[i % 2],
            "category": kinds[i % 2],
            "image": b64(i),
        }
        for i in range(count)
    ]
