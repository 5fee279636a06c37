"""Training rows whose first image or video is in a held-out split: they are left out, and named. Of two pages that were
turned or flipped the upright ones are compared. Rows that were not turned have no such digest, nor have
demonstrations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq

from vtcli.schema import Sample
from vtcli.store import encoded
from vtcli.store.encoded import EncodedImage
from vtcli.store.records import Demo, Media

PAGE = "page"
"""The key of a turned page's truth with the digest of its upright pixels (``importers.rows``)."""

Row = tuple[Sample | Demo, Media]


def unseen(rows: Iterable[Row], held_out: Mapping[str, str], dropped: dict[str, str]) -> Iterator[Row]:
    """The rows whose first image or video is not in ``held_out``; the ids of the others go into ``dropped``, with the
    id of the held-out row."""
    for row in rows:
        truth = row[0].truth if isinstance(row[0], Sample) else {}
        digests = [_digest(row[1][0]), str(truth.get(PAGE))] if row[1] else []
        same = next((held_out[one] for one in digests if one in held_out), None)
        if same is None:
            yield row
        else:
            dropped[row[0].id] = same


def first_media(path: Path) -> dict[str, str]:
    """The sha256 of each row's first image, and of its page where it was turned, with the row's id. Equal pixels have
    equal PNG bytes; images as they came are equal where their files are. A row without images has the digest of its
    first video, which is the video's name. A demonstration may have neither."""
    file = pq.ParquetFile(path)
    has = file.schema_arrow.names
    image = encoded.COLUMN if encoded.COLUMN in has else "images"
    columns = [name for name in ("id", image, "videos", "extra_info") if name in has]
    found: dict[str, str] = {}
    for row in (row for batch in file.iter_batches(batch_size=32, columns=columns) for row in batch.to_pylist()):
        if facts := row.get(encoded.COLUMN):
            found.setdefault(facts[0]["sha256"], row["id"])
        elif row.get("images"):
            found.setdefault(_digest(row["images"][0]["bytes"]), row["id"])
        elif row.get("videos"):
            found.setdefault(Path(row["videos"][0]["video"]).stem, row["id"])
        if page := json.loads((row.get("extra_info") or {}).get("truth") or "{}").get(PAGE):
            found.setdefault(page, row["id"])
    return found


def _digest(medium: bytes | EncodedImage) -> str:
    return medium.sha256 if isinstance(medium, EncodedImage) else hashlib.sha256(medium).hexdigest()
