"""The account of a filter for people and programs: ``filter.json``, ``dropped.jsonl``, facts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vtcli.filters.applying import EXAMPLES, HASHED, MEASURED, PLAIN, Subset
from vtcli.filters.facts import ImageHashes, Match, PassRate, PassRates, Reason, RowFacts
from vtcli.filters.judge_meter import FACT, JudgeMeter
from vtcli.statistics.metrics import wilson
from vtcli.store import codec, disk

RATES = {MEASURED: "pass_rate", PLAIN: "pass_rate_without_tools"}
"""Names of rates in the account and of their files below ``facts``."""

IMAGE_HASHES = "facts/image_hash.jsonl"


def account(found: Subset, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of ``filter.json``: ``facts`` of the run, counts of each rule, measured pass rates."""
    seen = found.steps[0].seen if found.steps else len(found.kept)
    rules = [
        {
            "rule": step.name,
            "seen": step.seen,
            "dropped": len(step.dropped),
            "kept": step.seen - len(step.dropped),
            "examples": [_dropped(row, reason) for row, reason in step.dropped[:EXAMPLES]],
            "kept_examples": [_shown(row) for row in step.kept_examples],
            "number": step.number or None,  # None for a rule without a number: filter.json has null
            "histogram": [asdict(bar) for bar in step.bars],
        }
        for step in found.steps
    ]
    whole = dict(facts) | {"rows": seen, "kept": len(found.kept), "rules": rules}
    return whole | {name: _rates(rates) for fact, name in RATES.items() if (rates := found.facts.get(fact))}


def _shown(row: RowFacts) -> dict[str, Any]:
    return {"file": row.file, "id": row.id}


def _dropped(row: RowFacts, reason: Reason) -> dict[str, Any]:
    """Returns a dropped row, the reason, and the row or question that it resembles."""
    said = _shown(row) | {"why": str(reason)}
    return said | ({"as": {"source": reason.source, "id": reason.id}} if isinstance(reason, Match) else {})


def _rates(rates: PassRates) -> dict[str, Any]:
    outcomes = Counter(outcome for rate in rates.values() for outcome in rate.outcomes)
    # Rollouts without a verdict (unjudged, broken) are in ``outcomes`` and in no share: None is not zero.
    judged = outcomes["right"] + outcomes["wrong"]
    return {
        "questions": len(rates),
        "without_verdict": sum(rate.rate is None for rate in rates.values()),
        "outcomes": dict(outcomes),
        "share_right": outcomes["right"] / judged if judged else None,
        "histogram": histogram(rates),
    }


def histogram(rates: PassRates) -> list[dict[str, Any]]:
    """Counts questions by rate, lowest first: ``[{"rate": 0.125, "questions": 3}, …]``. Leaves out missing verdicts."""
    found = Counter(rate.rate for rate in rates.values() if rate.rate is not None)
    return [{"rate": rate, "questions": count} for rate, count in sorted(found.items())]


def write(folder: Path, found: Subset, said: Mapping[str, Any]) -> None:
    """Writes ``filter.json``, ``dropped.jsonl`` (id, file, rule, why, as) and the measured facts, also of dropped rows.

    ``facts/pass_rate.jsonl`` and ``facts/pass_rate_without_tools.jsonl`` have one line a question with its rate and
    Wilson interval, ``facts/image_hash.jsonl`` one an image, ``facts/judged.jsonl`` one a question and rubric.
    Raises ``InputError`` for disk trouble."""
    disk.write_atomic(folder / "filter.json", (json.dumps(said, indent=1) + "\n").encode())
    dropped = ({"rule": step.name} | _dropped(row, reason) for step in found.steps for row, reason in step.dropped)
    disk.write_atomic(folder / "dropped.jsonl", _lines(dropped))
    for fact, name in RATES.items():
        rates: PassRates = found.facts.get(fact, {})
        if rates:
            facts = ({"id": key[1], "file": key[0]} | _fact(rate) for key, rate in rates.items())
            disk.write_atomic(folder / "facts" / f"{name}.jsonl", _lines(facts))
    judged = found.facts.get(FACT)
    if isinstance(judged, JudgeMeter):
        disk.write_atomic(folder / "facts" / "judged.jsonl", _lines(judged.lines()))
    hashes: ImageHashes = found.facts.get(HASHED, {})
    if hashes:
        disk.write_atomic(folder / IMAGE_HASHES, _lines({"sha256": k, "hash": v.hex()} for k, v in hashes.items()))


def read_rates(folders: Iterable[Path], fact: str) -> dict[tuple[str, str], PassRate]:
    """Reads the pass rates that ``write`` left in the artifacts at ``folders``, by ``RowFacts.key``. Raises
    ``InputError`` for a file that cannot be read."""
    found: dict[tuple[str, str], PassRate] = {}
    for path in (folder / "facts" / f"{RATES[fact]}.jsonl" for folder in folders):
        with disk.checked(path, "read"):
            text = path.read_text() if path.exists() else ""  # a shard without a question for the rule has none
        for line in map(json.loads, text.splitlines()):
            own = {field.name: line[field.name] for field in fields(PassRate)}
            found[line["file"], line["id"]] = codec.decode(PassRate, own)
    return found


def _fact(rate: PassRate) -> dict[str, Any]:
    share = wilson(rate.right, rate.judged) if rate.judged else None
    interval = {"low": share.low, "high": share.high} if share else {"low": None, "high": None}
    return {"rate": rate.rate, "right": rate.right, "judged": rate.judged} | interval | codec.encode(rate)


def _lines(values: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
