"""The cache of verdicts: what is in it after a kill, a torn line, and several writers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cases import each_case

from vtcli.engines.openai.replies import StoredReply, open_replies
from vtcli.errors import InputError
from vtcli.judging.model import open_verdicts
from vtcli.store import disk, keyed
from vtcli.store.keyed import key_of

WRITER = """
import sys
from pathlib import Path
from vtcli.judging.model import open_verdicts

kept, who = open_verdicts(Path(sys.argv[1])), sys.argv[2]
for n in range(int(sys.argv[3])):
    kept.put(f"{who}-{n}", {"score": 0.5, "reply": "x" * 3000})
    print(n, flush=True)
"""


def start(path: Path, who: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), who, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_a_verdict_is_there_after_a_restart(tmp_path: Path) -> None:
    first = open_verdicts(tmp_path / "deep" / "v.jsonl")
    first.put("a", {"score": 0.25, "reply": "ü\n"})
    assert open_verdicts(tmp_path / "deep" / "v.jsonl").get("a") == 0.25
    assert first.get("b") is None


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    open_verdicts(path).put("a", {"score": 1.0})
    whole = path.read_bytes()
    path.write_bytes(whole + b'\n{"key": "torn", "sco')
    after = open_verdicts(path)
    after.put("b", {"score": 0.5})
    for kept in (after, open_verdicts(path)):
        assert (kept.get("a"), kept.get("torn"), kept.get("b")) == (1.0, None, 0.5)


@each_case("junk", [b"[1]\n", b"nonsense\n", b"\xff\xfe\n", b'{"key": 1, "score": 1}\n', b'{"key": "k"}\n'])
def test_lines_of_another_kind_are_passed_over(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "v.jsonl"
    path.write_bytes(junk + b'{"key": "a", "score": 1}\n')
    kept = open_verdicts(path)
    assert kept.get("a") == 1.0 and len(kept) == 1


def test_what_another_process_wrote_is_seen_at_once(tmp_path: Path) -> None:
    mine, other = open_verdicts(tmp_path / "v.jsonl"), open_verdicts(tmp_path / "v.jsonl")
    other.put("a", {"score": 1.0})
    assert mine.get("a") == 1.0


REPLY = {"key": "k", "text": "K", "finish": "stop", "input": 5, "output": 1, "estimated": False}


@each_case("line", [REPLY, {"schema_version": 1, "type": "StoredReply", "value": REPLY}])  # now, and in 0.1.0
def test_a_reply_of_every_version_is_not_paid_again(tmp_path: Path, line: dict[str, object]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"schema_version": 1, "type": "StoredReply", "value": null}\n' + json.dumps(line) + "\n")
    kept = open_replies(str(path), tmp_path, "m")
    assert len(kept) == 1 and kept.get("k") == StoredReply("k", "K", "stop", 5, 1)


def test_replies_are_appended_under_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = open_replies(str(tmp_path / "r.jsonl"), tmp_path, "m")
    monkeypatch.setattr(keyed, "LOCK_S", 0.1)
    with disk.locked(tmp_path / "r.lock", 1.0, "another machine"), pytest.raises(disk.LockHeld):
        kept.put("k", REPLY, durable=True)
    assert (tmp_path / "r.jsonl").read_bytes() == b""
    kept.put("k", REPLY, durable=True)
    assert open_replies(str(tmp_path / "r.jsonl"), tmp_path, "m").get("k") == kept.get("k")


def test_a_file_that_is_removed_during_a_run_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text('{"key": "a", "score": 1, "reply": "a long one"}\n')
    mine, other = open_verdicts(path), open_verdicts(path)
    path.unlink()
    assert (mine.get("a"), mine.get("b")) == (1.0, None)
    other.put("b", {"score": 0.5})
    assert mine.get("b") == open_verdicts(path).get("b") == 0.5


def test_a_file_that_another_process_replaced_by_a_shorter_one_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text('{"key": "a", "score": 1, "reply": "a long one"}\n')
    mine = open_verdicts(path)
    path.write_text('{"key": "b", "score": 1}\n')
    assert mine.get("b") == 1.0


def test_several_writers_and_a_kill_lose_nothing_that_was_said_to_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    victim, *others = start(path, "victim", 10**6), start(path, "a", 100), start(path, "b", 100)
    assert victim.stdout is not None
    said = [int(victim.stdout.readline()) for _ in range(50)]
    victim.kill()
    victim.communicate(timeout=60)
    for other in others:
        assert other.communicate(timeout=60)[0].count("\n") == 100
    kept = open_verdicts(path)
    assert all(kept.get(f"victim-{n}") == 0.5 for n in said)
    assert all(kept.get(f"{who}-{n}") == 0.5 for who in "ab" for n in range(100))
    lines = [line for line in path.read_bytes().splitlines() if line]
    unreadable = [line for line in lines if not line.endswith(b"}")]
    assert len(unreadable) <= 1
    assert {json.loads(line)["score"] for line in lines if line not in unreadable} == {0.5}


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot open the judge's verdicts"):
        open_verdicts(tmp_path / "file" / "v.jsonl")


def test_a_key_is_the_content_whatever_the_order() -> None:
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1}) != key_of({"a": 1, "b": [3]})
