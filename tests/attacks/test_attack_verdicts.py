"""The judge can fail: each thing that it looks at breaks a case that was held, or says that nothing was shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vtcli.sandbox.types import TIERS, OutputImage, RunResult, Status

from . import judge, suite
from .case import Attack, AttackFinding, AttackVerdict, CaseRecord, ends, preamble, program, reports
from .scene import Scene, picture

PICTURE = picture()
X1, Y1, X2, Y2 = judge.CROP
SUM = int(PICTURE.astype(np.int64).sum())
CASE = Attack("fs.example", "nothing", "pass")
TOKEN = "vtcli-canary-" + "0123456789abcdef" * 2


def well(files: str = "[]", variable: str = "null", kept: str = "null", total: int = SUM) -> RunResult:
    """What a healthy run of ``judge.WELL`` gives."""
    said = f'{{"well": 1, "sum": {total}, "files": {files}, "threads": 1, "variable": {variable}, "kept": {kept}}}'
    crop = OutputImage(PICTURE[Y1:Y2, X1:X2].copy(), "pil_show")
    return RunResult(Status.OK, output=f"@@{said}\n", images=(crop,))


KEPT = well('["kept.txt"]', "41", '"kept"')
RUN = RunResult(Status.OK, output='@@{"began": 1}\n@@{"failed": "x"}\n@@{"done": 1}\n')
HEALTHY = CaseRecord(run=RUN, then=KEPT, bystander=KEPT, visitor=well(), wall_s=0.1)


def verdict(case: Attack = CASE, seen: CaseRecord = HEALTHY) -> AttackVerdict:
    return judge.judge(case, seen, "full", PICTURE).verdict


def test_what_got_nothing_and_harmed_nobody_is_held() -> None:
    assert judge.judge(CASE, HEALTHY, "full", PICTURE) == AttackFinding("fs.example", AttackVerdict.HELD, "ok", (), 0.1)


BROKEN = {
    "a report of a win": replace(HEALTHY, run=replace(RUN, output=RUN.output + '@@{"got": "x"}\n')),
    "a win in the next run": replace(HEALTHY, then=replace(KEPT, output=KEPT.output + '@@{"got": "x"}\n')),
    "a secret in the output": replace(HEALTHY, run=replace(RUN, output=RUN.output + TOKEN)),
    "a secret in the error": replace(HEALTHY, run=replace(RUN, error=TOKEN)),
    "harm outside": replace(HEALTHY, harm=("the host's tcp listener was reached",)),
    "another status": replace(HEALTHY, run=replace(RUN, status=Status.CRASH)),
    "our own fault": replace(HEALTHY, run=replace(RUN, status=Status.LOST)),
    "a late end": replace(HEALTHY, wall_s=25.0),
    "a next run that fails": replace(HEALTHY, then=RunResult(Status.ERROR)),
    "a next run that is silent": replace(HEALTHY, then=replace(KEPT, output="")),
    "other pixels": replace(HEALTHY, then=well('["kept.txt"]', "41", '"kept"', SUM + 1)),
    "no image": replace(HEALTHY, bystander=replace(KEPT, images=())),
    "a wrong image": replace(HEALTHY, bystander=replace(KEPT, images=(OutputImage(PICTURE.copy(), "show"),))),
    "a bystander that lost its names": replace(HEALTHY, bystander=well('["kept.txt"]', "null", '"kept"')),
    "a bystander that lost its file": replace(HEALTHY, bystander=well("[]", "41")),
    "a bystander with a new file": replace(HEALTHY, bystander=well('["evil", "kept.txt"]', "41", '"kept"')),
    "a bystander that is gone": replace(HEALTHY, bystander=RunResult(Status.LOST)),
    "a visitor with files": replace(HEALTHY, visitor=well('["evil"]')),
    "a visitor with foreign names": replace(HEALTHY, visitor=well("[]", "41")),
    "no visitor": replace(HEALTHY, visitor=RunResult(Status.LOST)),
}


def test_everything_that_is_looked_at_can_break_a_case() -> None:
    assert [name for name, seen in BROKEN.items() if verdict(seen=seen) is not AttackVerdict.BROKEN] == []


def test_a_failed_run_must_leave_names_and_files() -> None:
    failing = replace(CASE, statuses=ends(Status.ERROR))
    failed = replace(HEALTHY, run=replace(RUN, status=Status.ERROR))
    assert verdict(failing, failed) is AttackVerdict.HELD
    assert verdict(failing, replace(failed, then=well('["kept.txt"]', "42", '"kept"'))) is AttackVerdict.BROKEN
    assert verdict(failing, replace(failed, then=well('["evil", "kept.txt"]', "41", '"kept"'))) is AttackVerdict.BROKEN
    assert verdict(replace(failing, spoils=True), replace(failed, then=well())) is AttackVerdict.BROKEN, (
        "not a good run"
    )
    assert verdict(replace(failing, keeps=False), replace(failed, then=well())) is AttackVerdict.HELD


def test_code_may_ruin_its_own_episode_but_nobody_elses() -> None:
    spoiling = replace(CASE, spoils=True)
    assert verdict(spoiling, replace(HEALTHY, then=RunResult(Status.CRASH))) is AttackVerdict.HELD
    assert verdict(spoiling, replace(HEALTHY, bystander=RunResult(Status.CRASH))) is AttackVerdict.BROKEN


def test_after_a_broken_episode_every_run_is_lost() -> None:
    forging = replace(CASE, statuses=ends(Status.PROTOCOL), spoils=True)
    over = replace(HEALTHY, run=replace(RUN, status=Status.PROTOCOL), then=RunResult(Status.LOST))
    assert verdict(forging, over) is AttackVerdict.HELD
    assert verdict(forging, replace(over, then=KEPT)) is AttackVerdict.BROKEN


SHOWS_NOTHING = ["", '@@{"began": 1}\n', '@@{"began": 1}\n@@{"void": "x", "why": "NameError"}\n@@{"done": 1}\n']


def test_a_case_that_did_not_do_what_it_should_shows_nothing(subtests: pytest.Subtests) -> None:
    for output in SHOWS_NOTHING:
        with subtests.test(repr(output)):
            assert verdict(seen=replace(HEALTHY, run=replace(RUN, output=output))) is AttackVerdict.VOID


def test_a_gap_is_of_one_tier_and_excuses_no_damage() -> None:
    known = replace(CASE, gaps={"landlock": "stat"})
    won = BROKEN["a report of a win"]
    assert judge.judge(known, won, "landlock", PICTURE).verdict is AttackVerdict.GAP
    assert judge.judge(known, won, "full", PICTURE).verdict is AttackVerdict.BROKEN
    assert (
        judge.judge(known, replace(won, visitor=RunResult(Status.LOST)), "landlock", PICTURE).verdict
        is AttackVerdict.BROKEN
    )


def test_reports_are_whole_lines_of_json() -> None:
    output = 'noise @@{"a": 1}\n@@{"b": 2}\n@@[1]\n@@{"c":\n@@' + "[" * 100_000 + '\n@@{"d": 3}'
    assert reports(output) == ({"b": 2}, {"d": 3})


def test_every_case_compiles_has_its_own_name_and_a_known_family() -> None:
    names = [c.name for c in suite.CASES]
    assert len(set(names)) == len(names)
    for case in suite.CASES:
        assert case.name.split(".")[0] in suite.FAMILIES
        assert set(case.gaps) <= set(TIERS)
        if not case.raw:
            compile(program(case, {"any": 1}), case.name, "exec")
            compile(preamble({}) + case.after + judge.WELL, case.name, "exec")


def test_cases_are_chosen_by_name_family_or_pattern() -> None:
    assert {c.name.split(".")[0] for c in suite.chosen(("net", "hang.*"))} == {"net", "hang"}
    assert [c.name for c in suite.chosen(("net.tcp",))] == ["net.tcp"]
    with pytest.raises(ValueError, match=r"nowhere.*families: fs, net"):
        suite.chosen(("nowhere",))


def test_the_scene_knows_what_was_done_to_it() -> None:
    scene = Scene()
    try:
        assert scene.harm() == ()
        assert scene.token not in str(scene.facts("/w"))
        (scene.open / "planted").write_text("x")
        assert any("planted" in line for line in scene.harm())
        assert scene.harm() == (), "said once, and put back"
        scene.keep.chmod(0o600)
        assert scene.harm()
        scene.victim.kill()
        scene.victim.wait()
        assert any("ended with -9" in line for line in scene.harm())
    finally:
        scene.close()
    assert not scene.folder.exists()
