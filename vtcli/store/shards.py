"""Shards of an artifact, made one by one in a job array, put together: the same bytes as made at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vtcli.errors import ConfigError, InputError
from vtcli.schema import Sample, VideoRef
from vtcli.store import encoded
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.records import Demo, Media, demo_of, sample_of


def name_of(whole: str, shard: str) -> str:
    """The name of a shard's artifact.

    >>> name_of("demos", "3/16")
    'demos-shard-3-of-16'
    """
    return f"{whole}-shard-{shard.replace('/', '-of-')}"


def numbers(shard: str | None, key: str) -> tuple[int, int]:
    """The number of a shard, from 0, and how many there are: (2, 16) for "3/16"; (0, 1) for None. Raises
    ``ConfigError``, with the key, for anything else."""
    number, _, total = (shard or "1/1").partition("/")
    if not (number.isdigit() and total.isdigit() and 1 <= int(number) <= int(total)):
        raise ConfigError(f"{key}: expected a text such as 3/16 (the third of sixteen), got {shard!r}")
    return int(number) - 1, int(total)


def part(count: int, shard: str | None, key: str = "synth.shard") -> range:
    """The items of one shard: all of them, or for "3/16" the third of sixteen equal parts. Raises ``ConfigError`` as
    ``numbers``.

    >>> part(100, "2/3")
    range(33, 66)
    """
    number, total = numbers(shard, key)
    # Cut by multiplication, so that parts are equal to one item and all of them make exactly ``count``.
    return range(count * number // total, count * (number + 1) // total)


def names(total: int, stage: str) -> list[str]:
    """The names of all shards, 1/total to total/total. Raises ``ConfigError`` for no shard."""
    if total < 1:
        raise ConfigError(f"{stage}.merge={total}: expected the number of shards")
    return [f"{number}/{total}" for number in range(1, total + 1)]


def require_all(found: Mapping[str, object], wanted: Sequence[str], stage: str, of: str, root: Path) -> None:
    """Raises ``InputError``, with the command for each missing shard. ``of`` names the whole and its configuration."""
    if missing := [shard for shard in wanted if shard not in found]:
        raise InputError(
            f"{stage}.merge={len(wanted)}: of the shards of {of}, {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing in {root}. Make each with this command and "
            f"{stage}.shard='{missing[0]}' instead of {stage}.merge."
        )


def newest(
    store: ArtifactStore, whole: str, total: int, *, stage: str, of: str, fits: Callable[[Artifact], bool]
) -> list[Artifact]:
    """The shards 1/total to total/total of ``whole``: the newest that fit, so runs of several configurations may share
    a name. ``of``: what they have in common, in words.

    Raises:
        InputError: some are missing, with the commands that make them.
    """
    wanted = names(total, stage)
    shard_of = {name_of(whole, shard): shard for shard in wanted}
    found: dict[str, Artifact] = {}
    for artifact in store.ls():  # versions in ascending order
        if artifact.name in shard_of and fits(artifact):
            found[shard_of[artifact.name]] = artifact
    require_all(found, wanted, stage, f"{whole} with {of}", store.root)
    return [found[shard] for shard in wanted]


def made_alike(artifact: Artifact, kind: str, made_from: Mapping[str, Any], seed: int) -> bool:
    """True for a shard of ``vtcli synth`` with this configuration and seed."""
    made = artifact.manifest
    return artifact.kind == kind and made.seed == seed and _whole(made.config) == _whole(made_from)


def _whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without what differs between shards and their merge, as JSON reads it."""
    # Workers change no row; shard and merge are what the compared runs differ by.
    synth = {k: v for k, v in (config.get("synth") or {}).items() if k not in ("shard", "merge", "workers")}
    # Through JSON, because a manifest has lists where the configuration has tuples.
    return json.loads(json.dumps({**config, "synth": synth}))


def rows(paths: Sequence[Path], groups: Sequence[tuple[str, str]]) -> Iterator[tuple[Sample | Demo, Media]]:
    """All rows of the same file of every shard: for every (task, kind) in turn, shard by shard. The whole id tells the
    task of a row, for a task's name may begin as another's does."""
    for task, kind in groups:
        own = re.compile(rf"{re.escape(task)}-(demo-)?(train|validation|test)-\d+(-\w+)?")
        for path in paths:
            for batch in pq.ParquetFile(path).iter_batches(batch_size=32):
                for row in batch.to_pylist():
                    if own.fullmatch(row["id"]) and ("messages" not in row or row["id"].endswith(f"-{kind}")):
                        clips = [(path.parent / video["video"]).read_bytes() for video in row.get("videos") or ()]
                        held = encoded.of_row(row) or [image["bytes"] for image in row["images"]]
                        yield _read(row), [*held, *clips]


def _read(row: Mapping[str, Any]) -> Sample | Demo:
    if "messages" in row:
        return demo_of(row)
    given = row.get("videos") or ()
    clips = (VideoRef(v["video"], v["width"], v["height"], v["frames"], v["frames_per_s"]) for v in given)
    return sample_of(row, clips=tuple(clips))
