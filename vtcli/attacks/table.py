"""The findings of a round of attacks, for people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vtcli.attacks.case import AttackFinding, AttackVerdict
from vtcli.attacks.suite import CASES, FAMILIES
from vtcli.schema import Json

WHAT = {c.name: c.what for c in CASES} | {"host.descriptors": "files left open in the host's process"}


def line(finding: AttackFinding) -> str:
    """One case in one line, and one more for each reason when it was not held."""
    text = f"{finding.verdict:<7} {finding.case:<32} {finding.status:<9} {WHAT.get(finding.case, '')}"
    if finding.verdict is AttackVerdict.HELD:
        return text
    return "\n".join([text, *(f"          {reason}" for reason in finding.why)])


def summary(findings: Sequence[AttackFinding]) -> str:
    """The count of each verdict, per family and in all."""
    rows = [f"{'':<28} {'held':>6} {'gap':>6} {'BROKEN':>6} {'void':>6}"]
    families = {**FAMILIES, "host": "the host's process"}
    for family, title in families.items():
        own = [f for f in findings if f.case.split(".")[0] == family]
        if own:
            rows.append(_row(f"{family}: {title}", own))
    return "\n".join([*rows, _row("all", findings)])


def _row(title: str, findings: Sequence[AttackFinding]) -> str:
    count = Counter(f.verdict for f in findings)
    shown = (AttackVerdict.HELD, AttackVerdict.GAP, AttackVerdict.BROKEN, AttackVerdict.VOID)
    return f"{title:<28} " + " ".join(f"{count[v]:>6}" for v in shown)


def as_json(findings: Sequence[AttackFinding], report: Mapping[str, Json], user: int) -> dict[str, Json]:
    """Everything, to be stored beside a run."""
    rows: list[Json] = [
        {
            "case": f.case,
            "verdict": f.verdict.value,
            "status": f.status,
            "why": list(f.why),
            "wall_s": round(f.wall_s, 3),
        }
        for f in findings
    ]
    return {"uid": user, "sandbox": dict(report), "findings": rows}


def failed(findings: Sequence[AttackFinding]) -> bool:
    """Something was broken, or a case could not be judged."""
    return any(f.verdict in (AttackVerdict.BROKEN, AttackVerdict.VOID) for f in findings)
