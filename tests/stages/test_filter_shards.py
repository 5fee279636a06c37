"""``filter.shard`` and ``filter.merge``: the rows, reasons and bytes of one process, from parts that measured."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes import native_card
from moments import recorded
from PIL import Image

from stages import filter as stage
from vtcli.errors import ConfigError, InputError
from vtcli.filters import contamination, duplicates, hashing, lengths
from vtcli.filters.hashing import image_hash
from vtcli.schema import Sample
from vtcli.session.agent import Agent
from vtcli.store import images, records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import encode_png

ROWS = 24
PROMPT = {"style": "compact", "system": "", "tool_question": "{question}", "answer_question": "{question}"}
RULES = {"answer": lengths.answer, "duplicates": duplicates.exact, "near": duplicates.near}


def picture(seed: int, steps: int = 0) -> bytes:
    """A picture of 24 x 24 squares, or one that drifted away from it: each step is near the one before."""
    squares = np.random.default_rng(seed).integers(0, 256, (24, 24, 3)).astype(float)
    squares += 10.0 * np.random.default_rng(1).normal(size=(ROWS, 24, 24, 3))[:steps].sum(0)
    grid = squares.clip(0, 255).astype(np.uint8)
    return encode_png(np.asarray(Image.fromarray(grid).resize((96, 96), Image.Resampling.NEAREST)))


def shown(number: int) -> bytes:
    """Of every other row the drifting picture, else one that two rows have."""
    return picture(0, number) if number % 2 else picture(1 + number // 4)


def write_data(home: Path) -> None:
    """Copies of row 0 that drift away from it, exact copies, other pictures, and one that a test row shows."""
    rows = [
        (Sample(f"q{n:02}", "count", "answer", "train", "How many?", "3", (), (), {"value": [3]}), [shown(n)])
        for n in range(ROWS)
    ]
    mute = Sample("mute", "count", "answer", "train", "How many?", "", (), (), {"value": [3]})
    held = Sample("t0", "count", "answer", "test", "Which?", "3", (), (), {"value": [3]})
    with ArtifactStore(home).draft("data", "dataset", seed=0, stage="synth") as draft:
        records.write_samples(draft.path / "answer-train.parquet", [*rows[:5], (mute, [picture(77)]), *rows[5:]])
        records.write_samples(draft.path / "answer-test.parquet", [(held, [picture(5)])])
        draft.commit()


def run(home: Path, **changes: Any) -> Artifact:
    rules = changes.pop("rules", RULES)
    own = {"rules": {name: repr(rule) for name, rule in rules.items()}, **changes}
    config = stage.Config(
        data="data:v1", rules=rules, agent=Agent(prompt=PROMPT, signals={}, env=native_card),
        job={"home": str(home), "name": "clean", "filter": own}, **changes,
    )  # fmt: skip
    return stage.run(config)


def rows_of(artifact: Artifact) -> list[dict[str, Any]]:
    return pq.read_table(artifact.path / "answer-train.parquet").to_pylist()


def expected(numbers: range = range(ROWS)) -> list[str]:
    """The rows that stay, by all pairs: no code of the rules."""
    kept: list[tuple[str, int]] = []
    for number in numbers:
        value = int.from_bytes(image_hash(images.decode(shown(number), "x")))
        if all((value ^ other).bit_count() > 16 for _, other in kept):
            kept.append((f"q{number:02}", value))
    return [name for name, _ in kept]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    home = tmp_path_factory.mktemp("alone") / "artifacts"
    write_data(home)
    return run(home)


@pytest.mark.parametrize("total", [2, 5])
def test_merged_shards_are_one_process_to_the_byte(
    total: int, alone: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    for number in range(1, total + 1):
        part = run(tmp_path, shard=f"{number}/{total}")
        assert part.kind == "facts" and part.ref == f"clean-shard-{number}-of-{total}:v1"
        assert not list(part.path.glob("*.parquet"))
    monkeypatch.setattr(hashing.StoredHashes, "put", None)  # all is measured
    merged = run(tmp_path, merge=total)
    assert [row["id"] for row in rows_of(merged)] == expected()
    assert merged.digest == alone.digest and rows_of(merged) == rows_of(alone)
    assert len(merged.manifest.parents) == 1 + total and merged.ref == "clean:v1"
    assert run(tmp_path).ref == merged.ref  # it is what one process is asked for


def test_a_shard_may_have_no_row(tmp_path: Path) -> None:
    write_data(tmp_path)
    assert run(tmp_path, shard="1/40").manifest.summary["rows"] == 0


def test_shards_that_dropped_by_themselves_would_keep_other_rows() -> None:
    """A row is near one that goes itself, because of a row of another shard: the data of these tests is such."""
    first, second = range(ROWS // 2), range(ROWS // 2, ROWS)
    both = [*expected(first), *expected(second)]
    assert not set(expected()) <= set(both)


def test_contamination_is_that_of_one_process(tmp_path: Path) -> None:
    rules = {"unseen": contamination.against, **RULES}
    digests: list[str] = []
    for total in (1, 3):
        home = tmp_path / str(total)
        write_data(home)
        for number in range(1, total + 1):
            run(home, rules=rules, against=("data:v1",), shard=f"{number}/{total}")
        merged = run(home, rules=rules, against=("data:v1",), merge=total)
        digests.append(merged.digest)
    assert digests[0] == digests[1]
    said = json.loads((tmp_path / "3" / "clean" / "v1" / "filter.json").read_text())
    assert said["rules"][0]["dropped"] > 0


def test_a_shard_that_is_missing_or_of_other_data_is_named(tmp_path: Path) -> None:
    write_data(tmp_path)
    for number in (1, 3):
        run(tmp_path, shard=f"{number}/4")
    with pytest.raises(InputError, match=r" 2/4, 4/4 .*filter\.shard='2/4'"):
        run(tmp_path, merge=4)
    other = RULES | {"near": partial(duplicates.near, max_bits=8)}
    with pytest.raises(InputError, match="1/4, 2/4, 3/4, 4/4"):
        run(tmp_path, merge=4, rules=other)
    with pytest.raises(ConfigError, match=r"filter\.shard: .*3/16"):
        run(tmp_path, shard="5/4")
    with pytest.raises(ConfigError, match="expected one of the two"):
        run(tmp_path, shard="1/4", merge=4)


def test_a_killed_shard_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    monkeypatch.setattr(hashing, "AT_ONCE", 4)
    path = tmp_path / ".facts" / "image_hash.bin"
    with recorded(tmp_path) as recorder:
        run(tmp_path, shard="1/2")
    whole = len(path.read_bytes()) // 64
    recorder.first(path.name, bool).restore()
    known = len(path.read_bytes()) // 64
    counted: list[int] = []
    put = hashing.StoredHashes.put
    monkeypatch.setattr(hashing.StoredHashes, "put", lambda self, found: (counted.append(len(found)), put(self, found)))
    run(tmp_path, shard="1/2")
    assert 0 < known < whole == len(path.read_bytes()) // 64 and sum(counted) == whole - known
