"""The data card of an export: what is in it, where it came from, what is not known of its licences."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from vtcli.data.exporters.layouts import RowLayout
from vtcli.store.artifacts import Artifact


def card(
    artifact: Artifact, lineage: str, to: str, layout: RowLayout, counts: Mapping[str, Mapping[str, int]], licence: str
) -> str:
    """The text of ``README.md``. Its header names the files by configuration and split for ``load_dataset``."""
    forms: dict[str, list[dict[str, str]]] = {}
    ending = "json" if layout.schema is None else "parquet"
    for name in counts:
        form, _, split = name.rpartition("-")
        forms.setdefault(form or "default", []).append({"split": split, "path": f"{name}.{ending}"})
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
    bad = sum(sum(found.values()) for found in made.summary.get("bad_rows", {}).values())
    dropped = sum(made.summary.get("dropped_as_seen_in_a_held_out_split", {}).values())
    total = sum(sum(found.values()) for found in counts.values())
    recipe = f" and recipe {artifact.recipe}" if artifact.recipe else ""
    return f"""---
{yaml.safe_dump(header, sort_keys=False)}---

# {artifact.name}, version {artifact.version}, for {to}

Format: {layout.about}.
Exported by vtcli from the {artifact.kind} artifact {artifact.ref} (digest {artifact.digest[:12]}),
made {made.created} with seed {made.seed}{recipe}.
`vtcli synth` reads it back with `preset: {layout.preset}`.

## Rows

| file | source | rows | licence |
|---|---|---|---|
{table}

{total} rows. Left out before: {bad} that could not be used, and {dropped} whose image is in a held-out split.

## Lineage

```
{lineage}
```

## Licence

Licence of this export: {licence}. vtcli does not know the licences of the sources above.
Check each of them before you pass this on.
"""
