"""What a round of cases found, for people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vtcli.attacks.case import Finding, Verdict
from vtcli.attacks.suite import CASES, FAMILIES
from vtcli.schema import Json

WHAT = {c.name: c.what for c in CASES} | {"host.descriptors": "files left open in the host's process"}


def line(finding: Finding) -> str:
    """One case in one line, and one more for each reason when it was not held."""
    text = f"{finding.verdict:<7} {finding.case:<32} {finding.status:<9} {WHAT.get(finding.case, '')}"
    if finding.verdict is Verdict.HELD:
        return text
    return "\n".join([text, *(f"          {reason}" for reason in finding.why)])


def summary(findings: Sequence[Finding]) -> str:
    """The count of each verdict, per family and in all."""
    rows = [f"{'':<28} {'held':>6} {'gap':>6} {'BROKEN':>6} {'void':>6}"]
    families = {**FAMILIES, "host": "the host's process"}
    for family, title in families.items():
        own = [f for f in findings if f.case.split(".")[0] == family]
        if own:
            rows.append(_row(f"{family}: {title}", own))
    return "\n".join([*rows, _row("all", findings)])


def _row(title: str, findings: Sequence[Finding]) -> str:
    count = Counter(f.verdict for f in findings)
    shown = (Verdict.HELD, Verdict.GAP, Verdict.BROKEN, Verdict.VOID)
    return f"{title:<28} " + " ".join(f"{count[v]:>6}" for v in shown)


def as_json(findings: Sequence[Finding], report: Mapping[str, Json], user: int) -> dict[str, Json]:
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


def failed(findings: Sequence[Finding]) -> bool:
    """Something was broken, or a case could not be judged."""
    return any(f.verdict in (Verdict.BROKEN, Verdict.VOID) for f in findings)
