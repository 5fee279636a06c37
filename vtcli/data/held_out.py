"""Training rows whose first image or video is in a held-out split: they are left out, and named. A page that was turned
or flipped is the same page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from vtcli.data.generators import canvas
from vtcli.data.generators.rotflip import INVERSE, TRANSFORMS
from vtcli.schema import Sample
from vtcli.store import encoded, images
from vtcli.store.encoded import EncodedImage
from vtcli.store.records import Demo, Media

Row = tuple[Sample | Demo, Media]


def unseen(rows: Iterable[Row], held_out: Mapping[str, str], dropped: dict[str, str]) -> Iterator[Row]:
    """The rows whose first image or video is not in ``held_out``; the ids of the others go into ``dropped``, with the
    id of the held-out row."""
    for row in rows:
        turn = row[0].truth.get("transform") if isinstance(row[0], Sample) else None
        same = held_out.get(_digest(row[1][0], turn)) if row[1] else None
        if same is None:
            yield row
        else:
            dropped[row[0].id] = same


def first_media(path: Path) -> dict[str, str]:
    """The sha256 of each row's first image, with the row's id. Equal pixels have equal PNG bytes; images as they came
    are equal where their files are. A row without images has the digest of its first video, which is the video's name.
    A demonstration may have neither."""
    file = pq.ParquetFile(path)
    has = file.schema_arrow.names
    image = encoded.COLUMN if encoded.COLUMN in has else "images"
    columns = [name for name in ("id", image, "videos", "extra_info") if name in has]
    found: dict[str, str] = {}
    for row in (row for batch in file.iter_batches(batch_size=32, columns=columns) for row in batch.to_pylist()):
        if facts := row.get(encoded.COLUMN):
            found.setdefault(facts[0]["sha256"], row["id"])
        elif row.get("images"):
            truth = json.loads((row.get("extra_info") or {}).get("truth") or "{}")
            found.setdefault(_digest(row["images"][0]["bytes"], truth.get("transform")), row["id"])
        elif row.get("videos"):
            found.setdefault(Path(row["videos"][0]["video"]).stem, row["id"])
    return found


def _digest(medium: bytes | EncodedImage, turn: object = None) -> str:
    """``turn``: the transform of an image that was turned or flipped, which is undone first."""
    if isinstance(medium, EncodedImage):
        return medium.sha256
    if isinstance(turn, str) and turn in TRANSFORMS and turn != "none":
        page = images.decode(medium, "of a row")
        medium = canvas.png(np.ascontiguousarray(TRANSFORMS[INVERSE.get(turn, turn)](page)))
    return hashlib.sha256(medium).hexdigest()
