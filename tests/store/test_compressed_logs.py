"""A compressed log is read, cut and continued as a plain one, with the same values to the last bit."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import make_sample, make_scored, make_trajectory

from vtcli.errors import InputError
from vtcli.schema import PolicyTurn, Scored
from vtcli.scoring import stored
from vtcli.store import compressed, records
from vtcli.store.artifacts import ArtifactStore


def scored(number: int, tokens: int = 40) -> Scored:
    """A trajectory with as many random tokens, and log-probabilities of fp32 and fp64."""
    draw = random.Random(number)
    made = make_trajectory(make_sample(id=f"s{number // 4}"), ["K"])
    (turn,) = made.turns
    assert isinstance(turn, PolicyTurn)
    ids = tuple(draw.randrange(150_000) for _ in range(tokens))
    values = tuple(float(np.float32(-draw.random())) if n % 2 else -draw.random() for n in range(tokens))
    completion = replace(turn.completion, token_ids=ids, logprobs=values)
    made = replace(made, id=f"t{number}", turns=(replace(turn, completion=completion),), prompt_ids=tuple(range(900)))
    return make_scored(made, {"answer_correct": 1})


def test_values_come_back_bit_for_bit(tmp_path: Path) -> None:
    found = [scored(n) for n in range(9)]
    plain, small = tmp_path / "a.jsonl", tmp_path / "a.jsonl.zst"
    for part in (found[:4], [], found[4:]):
        records.append(plain, part)
        records.append(small, part)
    assert list(records.read(small, Scored)) == list(records.read(plain, Scored)) == found
    assert small.stat().st_size < plain.stat().st_size / 3
    assert not records.torn(small)


def test_a_prompt_is_stored_once_for_a_group(tmp_path: Path) -> None:
    one, group = tmp_path / "one.zst", tmp_path / "group.zst"
    first = replace(
        scored(0), trajectory=replace(scored(0).trajectory, prompt_ids=scored(1, 4000).trajectory.turns[0].token_ids)
    )
    rest = [
        replace(scored(n), trajectory=replace(scored(n).trajectory, prompt_ids=first.trajectory.prompt_ids))
        for n in range(1, 4)
    ]
    records.append(one, [first])
    records.append(group, [first, *rest])
    assert group.stat().st_size < 1.4 * one.stat().st_size


def test_what_a_killed_writer_left_is_cut_off_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    first = records.append(path, [scored(0), scored(1)])
    whole = records.append(path, [scored(2)])
    data = path.read_bytes()
    for size in (first + 1, first + 23, first + 24, first + 25, whole - 1):
        path.write_bytes(data[:size])
        assert records.torn(path)
        assert list(records.read(path, Scored)) == [scored(0), scored(1)]
        assert records.append(path, [scored(2)]) == whole
        assert path.read_bytes() == data
    records.truncate(path, first)
    assert list(records.read(path, Scored)) == [scored(0), scored(1)]


def test_damage_is_one_error_that_names_the_file_and_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    first = records.append(path, [scored(0)])
    records.append(path, [scored(1)])
    data = bytearray(path.read_bytes())
    data[first + 40 : first + 60] = bytes(20)
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"a\.jsonl\.zst is damaged at byte {first} "):
        list(records.read(path, Scored))


def test_a_plain_tool_reads_it(tmp_path: Path) -> None:
    if (zstd := shutil.which("zstd")) is None:
        pytest.skip("zstd is not installed")
    path = tmp_path / "a.jsonl.zst"
    records.append(path, [scored(0)])
    records.append(path, [scored(1)])
    done = subprocess.run([zstd, "-dc", str(path)], capture_output=True, check=True)
    assert len(done.stdout.splitlines()) == 2


def test_judge_finds_compressed_logs_of_all_ranks_and_plain_ones(tmp_path: Path) -> None:
    names = ("trajectories.jsonl", "trajectories.jsonl.zst", "trajectories-1.jsonl.zst", "trajectories-10.jsonl.zst")
    with ArtifactStore(tmp_path).draft("policy", "model", stage="rl", seed=0) as draft:
        for number, name in enumerate(names):
            records.append(draft.path / name, [scored(number)])
        draft.commit()
    source = stored.find(ArtifactStore(tmp_path), "policy:v1")
    assert [path.name for path in source.files] == list(names)
    assert [facts.id for facts, _, _ in stored.read(source)] == ["t0", "t1", "t2", "t3"]
    assert compressed.ENDING == ".zst"


def test_a_header_that_is_damaged_loses_no_later_frame_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.zst"
    first = records.append(path, [scored(0)])
    records.append(path, [scored(1)])
    data = bytearray(path.read_bytes())
    data[first] ^= 1
    path.write_bytes(data)
    for use in (lambda: list(records.read(path, Scored)), lambda: records.append(path, [scored(2)])):
        with pytest.raises(InputError, match=rf"damaged at byte {first}"):
            use()
    assert path.read_bytes() == bytes(data)
    path.write_bytes(data[:first] + bytes(100))  # what a crash of the machine may leave of an append
    assert list(records.read(path, Scored)) == [scored(0)]
