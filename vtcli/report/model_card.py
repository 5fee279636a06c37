"""The model card of a published model: its base, data and commands, every evaluation that the store has of it, limits.

Manifests and reports know all of it. Paths of this machine are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtcli.data.exporters.data_card import losses
from vtcli.errors import InputError
from vtcli.foreign import load_json, read_file
from vtcli.report import folder, published, tables
from vtcli.report.content import Evaluation
from vtcli.report.printing import Cell, Table, to_markdown
from vtcli.statistics.metrics import Estimate
from vtcli.store import manifest
from vtcli.store.artifacts import Artifact, ArtifactStore, Lineage
from vtcli.store.models import ModelSource

UNKNOWN = "unknown"
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^/\s,\[\]{}'\"]+/)+")


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The weights that training began with. ``licence`` is the one on the base's own card."""

    name: str
    licence: str = UNKNOWN
    on_hub: bool = False


def card(store: ArtifactStore, source: ModelSource, licence: str | None) -> str:
    """Returns the text of ``README.md`` with the header that the hub reads. ``licence`` None: the base's, if its card
    is in the hub's cache."""
    from huggingface_hub import ModelCardData

    assert source.artifact is not None
    artifact, made = source.artifact, source.artifact.manifest
    tree = store.lineage(str(artifact.path))
    base = base_model(tree)
    chosen = licence or base.licence
    header = ModelCardData(
        license=chosen,
        library_name="transformers",
        pipeline_tag="image-text-to-text",
        tags=["vtcli", *([artifact.recipe.replace("/", "-")] if artifact.recipe else [])],
        base_model=base.name if base.on_hub else None,
    )
    facts = {
        "made by": f"`vtcli {made.stage}`" + (f", recipe {artifact.recipe}" if artifact.recipe else ""),
        "part": source.name,
        "digest": artifact.digest[:12],
        "steps": made.summary.get("steps"),
        "seed": made.seed,
        "made": made.created,
        "vtcli": made.version_of_vtcli + (f", commit {made.git_commit[:12]}" if made.git_commit else ""),
        "base": base.name,
        "licence of the base": base.licence,
    }
    lines = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value not in (None, ""))
    asked = list(_evaluations(store, artifact, source.name))
    commands = "\n".join(_commands(tree))
    return f"""---
{header.to_yaml()}
---

# {artifact.name}, version {artifact.version}

A vision-language model that thinks with images: it calls tools, looks at what they return, and then answers.
`AutoModelForImageTextToText.from_pretrained` loads this folder. `vtcli serve serve.model=FOLDER` carries its calls out.

| | |
|---|---|
{lines}

## Data

{_data(tree)}

## Numbers

{_numbers(asked)}
## Commands

```
{commands}
```

## Lineage

```
{tree.text()}
```

## Limits

{_limits(made.summary, asked)}
## Licence

Licence of this model: {chosen}; of its base: {base.licence}. vtcli does not know the licences of the data above. Check
each of them before you pass this on.
"""


def base_model(tree: Lineage) -> BaseModel:
    """Returns the oldest model of a lineage and its start: a name of the hub, a folder, or nothing."""
    while parent := next((each for each in tree.parents if each.kind == "model"), None):
        tree = parent
    if tree.path is None:
        return BaseModel(f"{tree.ref}, which is not known: {tree.problem}")
    config = manifest.load(tree.path).manifest.config
    name = (config.get(tree.stage) or {}).get("model")
    if name is None:
        return BaseModel("none, the weights were drawn at random")
    if Path(name).is_absolute() or Path(name).exists():
        return BaseModel(Path(name).name, _licence(Path(name) / "README.md"))
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, "README.md") if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else None
    return BaseModel(name, _licence(Path(cached)) if isinstance(cached, str) else UNKNOWN, on_hub=True)


def _licence(readme: Path) -> str:
    from huggingface_hub import metadata_load

    try:
        found = metadata_load(readme) or {}
    except Exception:  # a stranger's card may be anything; then it states no licence
        return UNKNOWN
    return str(found.get("license_name") or found.get("license") or UNKNOWN)


def _nodes(tree: Lineage) -> Iterator[Lineage]:
    """Every artifact of a lineage once, parents first."""
    found: dict[tuple[str, str], Lineage] = {}

    def walk(node: Lineage) -> None:
        if (node.ref, node.digest) not in found:
            for parent in node.parents:
                walk(parent)
            found[node.ref, node.digest] = node

    walk(tree)
    yield from found.values()


def _data(tree: Lineage) -> str:
    lines = list[str]()
    for node in _nodes(tree):
        if node.kind not in ("dataset", "demos"):
            continue
        rows = manifest.load(node.path).manifest.summary.get("rows") if node.path else None
        counts: dict[str, Any] = rows if isinstance(rows, dict) else {}
        files = "; ".join(f"{file}: {sum(found.values())}" for file, found in counts.items() if sum(found.values()))
        left = sum(loss.rows for loss in losses(node))
        lines.append(f"| {node.ref} | {node.kind} | {node.stage} | {files or 'not stated'} | {left} |")
    if not lines:
        return "No data is known."
    return "\n".join(["| artifact | kind | stage | rows | left out on the way |", "|---|---|---|---|--:|", *lines])


def _commands(tree: Lineage) -> Iterator[str]:
    for node in _nodes(tree):
        yield command(manifest.load(node.path)) if node.path else f"# {node.ref}: {node.problem}"


def command(artifact: Artifact) -> str:
    """Returns the command that made an artifact, with folders of this machine shortened to ``…/``."""
    words = [word for word in artifact.manifest.overrides if not word.startswith("home=")]
    return _FOLDERS.sub("…/", " ".join(["vtcli", artifact.manifest.stage, *words, f"name={artifact.name}"]))


def _evaluations(store: ArtifactStore, model: Artifact, name: str) -> Iterator[tuple[Artifact, Evaluation]]:
    """Yields the store's reports on exactly these weights of the model ``name``."""
    for report in store.ls():
        if report.kind == "report" and any(p.digest == model.digest for p in report.manifest.parents):
            try:
                last = folder.load_series(report.path)[-1]
            except InputError:  # a damaged report has no numbers
                continue
            if last.source == name:
                yield report, last


def _numbers(asked: Sequence[tuple[Artifact, Evaluation]]) -> str:
    if not asked:
        return "None: no report of the store is of this model. `vtcli eval eval.model=…` makes one.\n"
    parts = list[str]()
    for report, last in asked:
        seed = report.manifest.seed or 0
        found = [tables.by_task((last,), form, seed) for form in ("answer", "tool")]
        shown = [replace(table, note="Broken trajectories are in no mean.") for table in found if table]
        every = [*shown, *_benchmarks(report.path / "benchmarks.json")]
        text = "\n".join(to_markdown(table) for table in every)
        parts.append(f"By `{command(report)}` ({report.ref}); means with 95 % intervals over questions.\n\n{text}")
    return "\n".join(parts)


def _benchmarks(path: Path) -> Iterator[Table]:
    if not path.is_file():
        return
    lines = list[tuple[Cell, ...]]()
    for name, result in load_json(read_file(path)).items():
        for each in result["figures"]:
            found = Estimate(each["value"], each["low"], each["high"], each["clusters"], each["method"], each["seed"])
            head = Cell(str(result.get("title", name))), Cell(str(each["figure"])), Cell(str(each["score"]))
            lines.append((*head, published.percent(found, each["answers"]), Cell(str(each["answers"]))))
    columns = ("benchmark", "figure", "scored by", "%", "answers")
    yield Table("Benchmarks", "Rules of `conf/benchmark`.", columns, tuple(lines))


def _limits(summary: Any, asked: Sequence[object]) -> str:
    lines = ["Intervals are over questions, and training is one run of one seed: another seed gives another model."]
    try:
        world: dict[str, Any] = load_json(summary.get("environment") or "{}")
        limits, pictures = world.get("limits") or {}, world.get("images") or {}
    except (ValueError, AttributeError):
        world, limits, pictures = {}, {}, {}
    if name := (world.get("env") or {}).get("name") or (world.get("env") or {}).get("_target_"):
        lines.append(f"It was trained in the environment {name}; with another prompt or other tools it is untested.")
    if limits:
        shown = ", ".join(f"{key} {value}" for key, value in limits.items())
        lines.append(f"Limits of its rollouts: {shown}.")
    if pictures.get("max_pixels"):
        lines.append(f"Images were shown with at most {pictures['max_pixels']} pixels.")
    if not asked:
        lines.append("It has not been evaluated.")
    return "".join(f"- {line}\n" for line in lines)
