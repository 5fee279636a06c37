"""Account of the rows that a teacher was asked, for people and programs: ``distillation.json``, ``dropped.jsonl``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtcli.engines.teachers.distil import Distiller, RowOutcome
from vtcli.store import codec, disk


def account(facts: Mapping[str, Any], found: Sequence[RowOutcome], distiller: Distiller) -> dict[str, Any]:
    """The content of ``distillation.json``. A dropped row counts under the reason of its last try."""
    whys = Counter(why for o in found for a in o.attempts if (why := distiller.why(a)))
    price, spent = distiller.ledger.price, distiller.ledger.spent
    return dict(facts) | {
        "rows": len(found),
        "kept": sum(o.chosen is not None for o in found),
        "types": dict(Counter(o.kind for o in found if o.kind)),
        "types_without_rows": _absent(found, distiller.settings.shares),
        "dropped_rows": dict(Counter(o.why for o in found if o.why).most_common()),
        "tries": distiller.tries,
        "dropped_tries": dict(whys.most_common()),
        "broken_tries": dict(distiller.broken.most_common()),
        "stopped": distiller.stopped or None,
        "usage": codec.encode(spent),
        "price": codec.encode(price),
        "money": spent.money(price),
    }


def _absent(found: Sequence[RowOutcome], wanted: Mapping[str, float]) -> list[str]:
    """Types of demonstrations that have a share and of which no row is kept."""
    kept = {outcome.kind for outcome in found}
    return [name for name, share in wanted.items() if share > 0 and name not in kept]


def write(folder: Path, said: Mapping[str, Any], found: Sequence[RowOutcome], distiller: Distiller) -> None:
    """Writes the report, and a line with the teacher's turns for every dropped row. Raises ``InputError`` for disk
    trouble."""
    disk.write_atomic(folder / "distillation.json", (json.dumps(said, indent=1) + "\n").encode())
    lines = [
        {
            "id": outcome.sample.id,
            "why": outcome.why,
            "answer": outcome.sample.answer,
            "tries": [
                {
                    "number": attempt.number,
                    "why": distiller.why(attempt),
                    "turns": [turn.text for turn in attempt.trajectory.policy_turns],
                    "results": [f"{r.status}: {r.message}" for r in attempt.trajectory.results],
                }
                for attempt in outcome.attempts
            ],
        }
        for outcome in found
        if outcome.chosen is None
    ]
    disk.write_atomic(folder / "dropped.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
