"""The judge: pure, from what was observed to a verdict. A case is held only when everything below is as it must be."""

from __future__ import annotations

import re

import numpy as np

from vtcli.protocols import Pixels
from vtcli.sandbox.types import RunResult, Status, Tier

from .case import TOKEN_PREFIX, Attack, AttackFinding, AttackVerdict, CaseRecord, Facts, over, reports

VERIFY_S = 30.0
"""Testing all claims of a run may take this long."""

NEXT_S = 30.0
"""Whatever a run left behind, the next one comes back by then."""

SLACK_S = 5.0
"""A run may come back this much after its limit: the machine may be busy, and killing is asynchronous."""

KEPT = 41
SECRET = re.compile(TOKEN_PREFIX + "[0-9a-f]{32}")
DONE = frozenset({Status.OK, Status.NO_OUTPUT})
CROP = (2, 3, 10, 9)  # x1, y1, x2, y2 of the picture that a healthy run shows

FIRST = f"""
kept_variable = {KEPT}
open("kept.txt", "w").write("kept")
print("@@" + '{{"first": 1}}')
"""
"""The first run of every attacked episode: what a failed attack must leave as it is."""

WELL = f"""
import json, os, threading
import numpy as np
from PIL import Image
_pixels = np.ascontiguousarray(np.asarray(image_clue_0)[..., :3])
Image.fromarray(_pixels).crop({CROP!r}).show()
_kept = open("kept.txt").read() if os.path.exists("kept.txt") else None
_files = sorted(n for n in os.listdir(".") if not n.startswith("input"))
print("@@" + json.dumps({{"well": 1, "sum": int(_pixels.astype("int64").sum()), "files": _files,
    "threads": threading.active_count(), "variable": globals().get("kept_variable"), "kept": _kept}}))
"""
"""A healthy run: it computes, sees its picture, its files and its names, prints, and shows an image."""


def judge(case: Attack, seen: CaseRecord, tier: Tier, picture: Pixels) -> AttackFinding:
    """The verdict on ``case`` after ``seen`` happened at ``tier``. ``picture`` (H, W, 3) is ``image_clue_0``."""
    facts = reports(seen.run.output) + (reports(seen.then.output) if not over(seen.run) else ())
    gains = _gains(case, seen, facts)
    damage = _damage(case, seen, picture)
    void = _void(case, seen, facts)
    verdict = AttackVerdict.HELD
    if void:
        verdict = AttackVerdict.VOID
    if gains or damage:
        verdict = AttackVerdict.GAP if tier in case.gaps and not damage else AttackVerdict.BROKEN
    return AttackFinding(case.name, verdict, seen.run.status.value, (*gains, *damage, *void), seen.wall_s)


def _gains(case: Attack, seen: CaseRecord, facts: tuple[Facts, ...]) -> list[str]:
    """Gains of the attacker."""
    gains = [f"got {f['got']}: {f.get('value', '')}"[:200] for f in facts if "got" in f]
    for result in (seen.run, seen.then):
        if SECRET.search(f"{result.output}\n{result.error}\n{result.value}"):
            gains.append("a secret of the host is in the output")
    gains += [f"outside: {line}" for line in seen.harm]
    return gains + (case.extra(seen, facts) if case.extra else [])  # not Django


def _damage(case: Attack, seen: CaseRecord, picture: Pixels) -> list[str]:
    """Faults of the run's end, of the episode, or of anybody else."""
    wrong: list[str] = []
    run = seen.run
    if run.status not in case.statuses:
        expected = "|".join(sorted(case.statuses))
        wrong.append(f"ended as {run.status}, expected {expected}: {run.error[-300:]}")
    if seen.wall_s > case.wall_limit_s + SLACK_S:
        wrong.append(f"took {seen.wall_s:.1f} s, the limit is {case.wall_limit_s:g} s")
    if seen.verify_s > VERIFY_S + SLACK_S:
        wrong.append(f"testing its claims took {seen.verify_s:.1f} s, the limit is {VERIFY_S:g} s")
    if seen.then_s > NEXT_S + SLACK_S:
        wrong.append(f"the next run took {seen.then_s:.1f} s, the limit is {NEXT_S:g} s")
    if over(run):
        if seen.then.status is not Status.LOST:
            wrong.append(f"the episode was over, yet its next run ended as {seen.then.status}")
    elif not (case.spoils and run.status in DONE):
        kept = ["kept.txt"] if case.keeps and run.status not in DONE else None
        wrong += [f"next run: {line}" for line in unwell(seen.then, picture, kept)]
    wrong += [f"bystander: {line}" for line in unwell(seen.bystander, picture, ["kept.txt"])]
    return wrong + [f"visitor: {line}" for line in unwell(seen.visitor, picture, [])]


def unwell(result: RunResult, picture: Pixels, files: list[str] | None) -> list[str]:
    """Faults of a run of ``WELL``. ``files``: all that may lie in the workspace; None: anything."""
    if result.status is not Status.OK:
        return [f"ended as {result.status}: {result.error[-300:]}"]
    said = next((f for f in reports(result.output) if "well" in f), None)
    if said is None:
        return [f"did not say that it is well: {result.output[-200:]!r}"]
    wrong: list[str] = []
    if said["sum"] != int(picture.astype(np.int64).sum()):
        wrong.append("its picture has other pixels")
    if files is not None and said["files"] != files:
        wrong.append(f"its workspace holds {said['files']}, expected {files}")
    if files and (said["variable"] != KEPT or said["kept"] != "kept"):
        wrong.append(f"it lost what earlier runs made: {said['variable']!r}, {said['kept']!r}")
    if files == [] and said["variable"] is not None:
        wrong.append("it has the names of another episode")
    x1, y1, x2, y2 = CROP
    if not any(np.array_equal(p.pixels, picture[y1:y2, x1:x2]) for p in result.images):
        wrong.append(f"it showed one image and the host got {[p.pixels.shape for p in result.images]}")
    return wrong


def _void(case: Attack, seen: CaseRecord, facts: tuple[Facts, ...]) -> list[str]:
    """Why the case shows nothing: its code was wrong, did not start, or did not come to its end."""
    void = [f"the case is wrong: {f['void']}: {f.get('why', '')}" for f in facts if "void" in f]
    if case.raw or seen.run.status is Status.REFUSED:
        return void
    if not any("began" in f for f in facts) and not (case.spoils and over(seen.run)):
        void.append("the code did not start")
    if seen.run.status in DONE and case.finishes and not any("done" in f for f in facts):
        void.append("the code did not come to its end")
    return void
