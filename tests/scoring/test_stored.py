"""Finding stored trajectories, reading them, and putting them back into the groups that they were rolled out in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cases import each_case
from fakes import make_sample, make_scored, make_trajectory

from vtcli.errors import InputError
from vtcli.schema import Scored, Stop, Trajectory
from vtcli.scoring.stored import Facts, find, groups, read
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore


def scored(number: int, sample: str = "s", version: int | None = 0, form: str = "answer") -> Scored:
    texts = [] if version is None else ["<answer>K</answer>"]
    made = make_trajectory(make_sample(id=sample, form=form), texts, stop=Stop.ANSWERED if texts else Stop.BROKEN)
    turns = tuple(replace(turn, version=version) for turn in made.turns)
    return make_scored(replace(made, id=f"t{number}", turns=turns), {"calls": 0, "stop": str(made.stop)})


def facts(sample: str, version: int | None, form: str = "answer") -> Facts:
    return Facts("x", sample, "zoom", form, version)


def test_members_of_a_group_share_question_and_policy_version() -> None:
    found = [facts("a", 0), facts("a", 0), facts("b", 0), facts("a", 1), facts("a", 0, "tool"), facts("b", 0)]
    assert groups(found, None) == [[0, 1], [2, 5], [3], [4]]


def test_a_question_that_one_step_drew_twice_is_two_groups_when_the_size_is_known() -> None:
    found = [facts("a", 3)] * 2 + [facts("b", 3)] * 2 + [facts("a", 3)] * 2
    assert groups(found, 2) == [[0, 1], [2, 3], [4, 5]]
    assert groups(found, None) == [[0, 1, 4, 5], [2, 3]]


def test_a_rollout_that_broke_before_its_first_turn_stays_in_the_group_it_is_stored_in() -> None:
    found = [
        facts("a", 0),
        facts("a", 0),
        facts("b", 5),
        facts("a", None),
        facts("a", 5),
        facts("b", 5),
        facts("b", None),
    ]
    assert groups(found, 2) == [[0, 1], [2, 5], [3, 4], [6]]
    assert groups([facts("a", None), facts("a", None)], None) == [[0, 1]]


def test_trajectories_of_all_ranks_are_read_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    for rank, name in enumerate(
        ("trajectories.jsonl", "trajectories-1.jsonl", "trajectories-10.jsonl", "trajectories-2.jsonl")
    ):
        records.append(tmp_path / name, [scored(rank)])
    source = find(ArtifactStore(tmp_path / "artifacts"), str(tmp_path))
    assert [each.id for each, _, _ in read(source)] == ["t0", "t1", "t3", "t2"]


def test_a_file_of_an_artifact_keeps_the_artifact_as_its_parent(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    with store.draft("policy", "model", stage="rl", config={"rl": {"group_size": 4}}) as draft:
        records.append(draft.path / "trajectories.jsonl", [scored(0)])
        made = draft.commit()
    by_ref, by_file = find(store, "policy@latest"), find(store, str(made.path / "trajectories.jsonl"))
    assert [p.ref for p in by_ref.parents] == [p.ref for p in by_file.parents] == ["policy:v1"]
    assert by_ref.digest == by_file.digest == made.digest
    assert by_ref.group_size == 4


def test_a_bare_file_is_known_by_its_content(tmp_path: Path) -> None:
    records.append(tmp_path / "a.jsonl", [scored(0)])
    first = find(ArtifactStore(tmp_path), str(tmp_path / "a.jsonl"))
    records.append(tmp_path / "a.jsonl", [scored(1)])
    assert find(ArtifactStore(tmp_path), str(tmp_path / "a.jsonl")).digest != first.digest
    assert first.parents == []


def write(path: Path, *lines: str) -> None:
    path.write_text("".join(lines))


def line(value: Scored | Trajectory, **changes: object) -> str:
    return json.dumps(json.loads(records._line(value)) | changes) + "\n"  # pyright: ignore[reportPrivateUsage]


@each_case(
    ("content", "words"),
    [
        (["line", {"schema_version": 99}], "line 1 has schema version 99; this vtcli reads 1"),
        (["line", {"type": "TrainRow"}], "holds a TrainRow; a Scored or Trajectory or Score was expected"),
        (["garbage"], r"line 1 is not a record of vtcli \(it has no key 'schema_version'; a Scored or Trajectory or"),
        (["twice"], "'t0' occurs twice"),
        (["nothing"], "holds no trajectory"),
    ],
)
def test_what_cannot_be_scored_is_one_clear_error(content: list, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    made = {
        "line": lambda: line(scored(0), **content[1]),
        "garbage": lambda: '{"messages": []}\n',
        "twice": lambda: line(scored(0)) * 2,
        "nothing": lambda: "",
    }[content[0]]()
    write(path, made)
    with pytest.raises(InputError, match=words):
        list(read(find(ArtifactStore(tmp_path), str(path))))


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    write(path, line(scored(0)), line(scored(1))[:-20])
    assert [each.id for each, _, _ in read(find(ArtifactStore(tmp_path), str(path)))] == ["t0"]
    assert "the last line of" in capsys.readouterr().err


@each_case(
    ("given", "words"),
    [
        ("nowhere.jsonl", "it is neither a file, a folder, NAME:vN"),
        ("data", "Say which version: data@latest"),
        ("data:v1", "data:v1, a dataset, holds no trajectories.jsonl"),
        ("data:v7", "data:v7"),
    ],
)
def test_an_input_that_is_not_there_or_holds_nothing_says_where_trajectories_are(
    given: str, words: str, tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path)
    with store.draft("data", "dataset") as draft:
        (draft.path / "rows").write_text("x")
        draft.commit()
    with pytest.raises(InputError, match=words):
        find(store, given)
