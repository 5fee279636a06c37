"""The data card of an export: its content and sources, and the unknown licences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from vtcli.data.exporters.layouts import RowLayout
from vtcli.store import manifest
from vtcli.store.artifacts import Artifact, Lineage

SEEN = "dropped_as_seen_in_a_held_out_split"
"""Key of a manifest's summary."""

SEEN_SAID = "its image is in a held-out split"


@dataclass(frozen=True, slots=True)
class Loss:
    """Rows that one ancestor left out for one reason."""

    ref: str
    stage: str
    why: str
    rows: int


def losses(tree: Lineage) -> list[Loss]:
    """Rows that an artifact and the data it was made from left out, the oldest first. They are bad rows, rows seen in
    a held-out split, rows of every filter rule, and rows that a teacher did not solve. A filter's policy and what its
    rows were compared with are no data of it. Rows of shards are counted once: their merge counts the bad ones."""
    if tree.path is None:
        return [Loss(tree.ref, tree.stage, f"not known: {tree.problem}", 0)]
    data = [parent for parent in tree.parents if parent.kind in ("dataset", "demos")]
    if tree.stage == "filter":
        data = data[:1]
    before = list(dict.fromkeys(loss for parent in data for loss in losses(parent)))
    shards = {parent.ref for parent in data if tree.stage == parent.stage == "synth" and parent.kind == tree.kind}
    before = [loss for loss in before if loss.ref not in shards or loss.why == SEEN_SAID]
    return before + _own(tree, manifest.load(tree.path).manifest.summary)


def _own(tree: Lineage, summary: Mapping[str, Any]) -> list[Loss]:
    counts: dict[str, int] = {}
    for found in summary.get("bad_rows", {}).values():
        for reason, rows in found.items():
            counts[f"bad row: {reason}"] = counts.get(f"bad row: {reason}", 0) + rows
    counts[SEEN_SAID] = sum(summary.get(SEEN, {}).values())
    rules = summary.get("dropped", {}) if tree.stage == "filter" else {}
    counts |= {f"filter rule {rule}": rows for rule, rows in rules.items()}
    counts |= {f"no demonstration: {why}": rows for why, rows in summary.get("dropped_rows", {}).items()}
    return [Loss(tree.ref, tree.stage, why, rows) for why, rows in counts.items() if rows or why.startswith("filter")]


def card(
    artifact: Artifact, tree: Lineage, to: str, layout: RowLayout, counts: Mapping[str, Mapping[str, int]], licence: str
) -> str:
    """The text of ``README.md``. Its header names the files by configuration and split for ``load_dataset``."""
    forms: dict[str, list[dict[str, str]]] = {}
    for name in counts:
        form, _, split = name.rpartition("-")
        forms.setdefault(form or "default", []).append({"split": split, "path": f"{name}.{layout.ending}"})
    header = {
        "license": licence,
        "configs": [{"config_name": form, "data_files": files} for form, files in forms.items()],
    }
    made = artifact.manifest
    table = "\n".join(
        f"| {name} | {which} | {count} | {licence} |"
        for name, found in counts.items()
        for which, count in found.items()
    )
    lost = losses(tree)
    out = "\n".join(f"| {loss.ref} | {loss.stage} | {loss.why} | {loss.rows} |" for loss in lost)
    out = f"\n\n| artifact | step | why | rows |\n|---|---|---|---|\n{out}" if lost else ""
    total = sum(sum(found.values()) for found in counts.values())
    recipe = f" and recipe {artifact.recipe}" if artifact.recipe else ""
    back = ", with `reading: {crops: any, call_space: view}` where tools cut from larger pictures"
    cut = back if artifact.kind == "demos" else ""
    return f"""---
{yaml.safe_dump(header, sort_keys=False)}---

# {artifact.name}, version {artifact.version}, for {to}

Format: {layout.about}.
Exported by vtcli from the {artifact.kind} artifact {artifact.ref} (digest {artifact.digest[:12]}),
made {made.created} with seed {made.seed}{recipe}.
`vtcli synth` reads it back with `row: {layout.set}`{cut}.

## Rows

| file | source | rows | licence |
|---|---|---|---|
{table}

{total} rows. Left out on the way: {sum(loss.rows for loss in lost)}.{out}

## Lineage

```
{tree.text()}
```

## Licence

Licence of this export: {licence}. vtcli does not know the licences of the sources above.
Check each of them before you pass this on.
"""
