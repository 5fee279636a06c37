"""Shards of an evaluation: jobs that answer a part of its questions each, and one that puts them together.

The merge begins with the trajectories of all shards in its work folder, as a run that was interrupted after its last
one. It then does what that run would: rewards, tables and pages are made once, over everything.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vtcli.benchmarks.samples import Part
from vtcli.errors import ConfigError, InputError
from vtcli.report import folder
from vtcli.runs.identity import Identity, listed
from vtcli.runs.run import RunSettings, StageRun, fingerprint
from vtcli.schema import Scored
from vtcli.store import disk, shards
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore
from vtcli.store.retention import link

TRAJECTORIES = "trajectories.jsonl"


def part(shard: str | None) -> Part:
    """Every n-th question: "3/16" is the third of sixteen parts.

    >>> part("3/16")
    Part(first=2, step=16)
    """
    return Part(*shards.numbers(shard, "eval.shard"))


def require(shard: str | None, merge: int | None, policy: str) -> None:
    """Raises ``ConfigError`` for a shard that is none, for both at once, and for imported trajectories."""
    part(shard)
    if policy == "imported" and (shard or merge is not None):
        given = f"eval.shard={shard}" if shard else f"eval.merge={merge}"
        raise ConfigError(f"eval.policy=imported reads all trajectories at once; got {given}. Leave it out")
    if shard and merge is not None:
        raise ConfigError(f"eval.shard={shard} and eval.merge={merge}: expected one of the two at most")
    if merge is not None:
        shards.names(merge, "eval")


def require_some(samples: Collection[object], where: str, shard: str | None) -> None:
    """Raises ``InputError`` where a run, or a shard of it, has no question."""
    if not samples:
        fewer = f" for shard {shard}: make fewer" if shard else ""
        raise InputError(f"there is no question in {where}{fewer}.")


@dataclass(frozen=True)
class WholeRun:
    """The run that shards are parts of: its settings, configuration, parents, and keys that do not count."""

    settings: RunSettings
    job: Mapping[str, Any]
    parents: Sequence[Artifact]
    runtime_keys: Sequence[str]

    def shards(self, store: ArtifactStore, total: int | None) -> list[Artifact]:
        """The newest shards 1/total to total/total of exactly this configuration, seed, model and data.

        Raises:
            InputError: some are missing; says how to make them.
        """
        names = shards.names(total, "eval") if total is not None else []
        requests = {self._request(name): name for name in names}
        found = {requests[r]: a for a in store.ls() if (r := a.manifest.identity.get("request")) in requests}
        of = f"{self.settings.name} with this configuration, model, data and seed"
        shards.require_all(found, names, "eval", of, store.root)
        return [store.resolve(found[name].ref, "trajectories") for name in names]

    def of(self, shard: str) -> RunSettings:
        """The settings of a shard, whose artifact has a name of its own."""
        return replace(self.settings, name=shards.name_of(self.settings.name, shard))

    def _request(self, shard: str) -> str:
        config = {**self.job, "eval": {**self.job["eval"], "shard": shard}}
        keys = self.runtime_keys
        return fingerprint("eval", "trajectories", self.of(shard), config, self.parents, runtime_keys=keys)


def put(parts: Sequence[Artifact], stage: StageRun, images: ImageStore) -> None:
    """Puts the trajectories of the shards and their images into the work folder.

    Raises:
        InputError: a shard was made from other files, or with other code from outside.
    """
    for each in parts:
        if changed := Identity.read(each.manifest.identity).changes(stage.identity):
            raise InputError(
                f"{each.ref} was made before {listed(changed)} changed, so it is no part of this evaluation. Make it "
                "again."
            )
    for each in parts:
        for source in sorted((each.path / "images").rglob("*.png")):
            link(source, images.root / source.relative_to(each.path / "images"))
    with disk.checked(stage.work, "put the shards together in"):
        whole = b"".join((each.path / TRAJECTORIES).read_bytes() for each in parts)
    disk.write_atomic(stage.work / TRAJECTORIES, whole)


def finish(stage: StageRun, found: Sequence[Scored], images: ImageStore) -> Artifact:
    """Commits a shard: its trajectories and their images."""
    out = stage.work / "shard"
    shutil.rmtree(out, ignore_errors=True)
    folder.save_trajectories(out, found, images)
    return stage.commit(out, {"trajectories": len(found)})


def command_of_whole(command: str | None) -> list[str]:
    """The command that makes the report at once, for its page: that of a merge without ``eval.merge``.

    >>> command_of_whole("vtcli eval model=policy@latest eval.merge=4 data=data@latest")
    ['vtcli eval model=policy@latest data=data@latest']
    """
    return [re.sub(r" eval\.merge=\S+", "", command)] if command else []
