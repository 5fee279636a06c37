"""References for contamination: questions of benchmarks and held-out files, with the hashes of their images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from vtcli.benchmarks import samples
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.errors import InputError
from vtcli.filters.facts import Reference, References, RowFacts, facts_of
from vtcli.filters.hashing import BITS, HashMeter, StoredHashes, split_hashes, turned_hashes
from vtcli.foreign import print_lines
from vtcli.store import parquet
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageStore

TURNED = "image_hash_turned.bin"
"""File of the hashes of all turns, beside the file of plain ones."""

ReadImages = Callable[[], Sequence[bytes]]


class ReferenceReader:
    """Reads ``references`` for ``applying.apply`` once, when the first rule needs them."""

    def __init__(
        self,
        facts: Path,
        artifacts: Sequence[Artifact],
        splits: Sequence[str],
        bad_rows: Literal["error", "skip"] = "error",
    ) -> None:
        self._facts, self._artifacts, self._splits = facts, artifacts, splits
        self._bad_rows: Literal["error", "skip"] = bad_rows
        self._benchmarks: list[tuple[Path, str, Benchmark, ImageStore]] = []
        self._encoded: dict[tuple[str, str], ReadImages] = {}
        self._found: References | None = None

    def add(self, folder: Path, benchmarks: Mapping[str, Benchmark], store: ImageStore) -> None:
        """Adds the local copies of benchmarks in a folder."""
        self._benchmarks += [(folder, name, one, store) for name, one in benchmarks.items()]

    def __call__(self, rows: object = (), decided: object = None) -> References:
        """Raises ``InputError`` for files that are missing or damaged."""
        if self._found is None:
            read = [*self._of_artifacts(), *self._of_benchmarks()]
            self._encoded = {row.key: encoded for row, encoded in read}
            stored = StoredHashes(self._facts / TURNED, 8 * BITS // 8)
            hashes = HashMeter(stored, self.images, turned_hashes)([row for row, _ in read])
            self._found = {
                row.key: Reference(
                    row.file,
                    row.id,
                    row.question,
                    tuple(tuple(split_hashes(hashes[sha])) for sha in row.media[: len(row.sizes)]),
                )
                for row, _ in read
            }
        return self._found

    def images(self, row: RowFacts) -> Sequence[bytes]:
        """Returns a reference's stored images."""
        return self._encoded[row.key]()

    def shown(self, source: str, id: str) -> Sequence[bytes] | None:  # noqa: A002, as in the records
        """Returns the images of a reference, or None if no reference has that name."""
        found = self._encoded.get((source, id))
        return found() if found else None

    def _of_artifacts(self) -> Iterator[tuple[RowFacts, ReadImages]]:
        for artifact in self._artifacts:
            files = sorted(artifact.path.glob("*.parquet"))
            paths = [path for path in files if path.stem.rpartition("-")[2] in self._splits]
            if not paths:
                have = ", ".join(path.stem for path in files) or "no Parquet file"
                raise InputError(
                    f"{artifact.ref} has no file of the splits {', '.join(self._splits)}; it has {have}. "
                    "Set filter.against_splits."
                )
            schema = parquet.DEMO_SCHEMA if artifact.kind == "demos" else parquet.SAMPLE_SCHEMA
            for path in paths:
                table = parquet.ParquetTable(path, schema, self._bad_rows)
                print_lines(f"skipped: {line}" for line in table.bad)
                for row in facts_of(table):
                    named = replace(row, file=f"{artifact.ref}/{row.file}")
                    yield (
                        named,
                        lambda table=table, index=row.index: table.images(index),
                    )  # defaults bind this row's values

    def _of_benchmarks(self) -> Iterator[tuple[RowFacts, ReadImages]]:
        for folder, name, benchmark, store in self._benchmarks:
            # A benchmark's prompt would add its words to every question, and all would look alike.
            bare = replace(benchmark, prompt="{question}", options_prompt=None)
            for index, sample in enumerate(samples.load(folder, name, bare, store)):
                shas = tuple(ref.full for ref in sample.images)
                row = RowFacts(
                    file=name,
                    index=index,
                    id=sample.id,
                    form=sample.form,
                    question=sample.question,
                    answer=sample.answer,
                    sizes=tuple((ref.width, ref.height) for ref in sample.images),
                    media=shas,
                    content="",
                )
                yield row, lambda store=store, shas=shas: [store.path(sha).read_bytes() for sha in shas]
