"""Every command ends with the command to type next."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import command

from vtcli.config import compose
from vtcli.runbook import reader
from vtcli.runbook.step import STAGES
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.manifest import Kind

CODE = ("+recipe=codevision", "+variant=codevision_code", "+scale=tiny")


def _made(store: ArtifactStore, name: str, kind: Kind, stage: str, *words: str, of: Artifact | None = None) -> Artifact:
    parents = [of] if of else []
    fingerprint = f"{name}{words}"
    with store.draft(
        name, kind, parents=parents, config={}, seed=0, fingerprint=fingerprint, stage=stage, overrides=words
    ) as draft:
        (draft.path / "data.bin").write_bytes(fingerprint.encode())
        return draft.commit()


def test_every_command_ends_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stage's is ``reader.command``. Each can be typed: it composes, or its command exists."""
    monkeypatch.chdir(tmp_path)
    store = ArtifactStore(tmp_path / "artifacts")
    data = _made(store, "data", "dataset", "synth", "stage=synth", *CODE)
    bare = _made(store, "bare", "dataset", "synth", "stage=synth")
    policy = _made(store, "policy", "model", "rl", "stage=rl", *CODE, of=data)
    report = _made(store, "report", "report", "eval", "stage=eval", of=policy)
    read_by = {
        data.ref: (data, "rl +recipe=codevision variant=code scale=tiny data=data:v1"),
        bare.ref: (bare, "artifacts view bare:v1 --open"),
        policy.ref: (policy, "eval +recipe=codevision variant=code scale=tiny model=policy:v1 data=data:v1"),
        report.ref: (report, "view report:v1"),
        "demos": (_made(store, "demos", "demos", "synth", "+recipe=tiny_base"), "sft +recipe=tiny_base data=demos:v1"),
        "base": (_made(store, "base", "model", "sft", "+recipe=tiny_base"), "rl +recipe=toolsrl model=base:v1"),
        "codev": (_made(store, "codev", "model", "sft", "+recipe=tiny_codev"), "rl +recipe=codev model=codev:v1"),
        "any": (_made(store, "any", "model", "sft"), "serve model=any:v1"),
        "scores": (_made(store, "scores", "scores", "judge", of=report), "view report:v1"),
        "facts": (_made(store, "facts", "facts", "filter"), "artifacts show facts:v1"),
        "shard": (
            _made(store, "d-shard-2-of-4", "dataset", "synth", "stage=synth", *CODE, "name=d", "synth.shard=2/4"),
            "synth +recipe=codevision variant=code +scale=tiny name=d synth.merge=4",
        ),
        "elsewhere": (
            _made(ArtifactStore(tmp_path / "disk"), "data", "dataset", "synth", "+recipe=codev"),
            f"rl +recipe=codev data=data:v1 home={tmp_path}/disk",
        ),
    }
    wrong = [
        f"{name}: {printed}"
        for name, (artifact, expected) in read_by.items()
        if (printed := " ".join(reader.command(artifact))) != expected
    ]
    for artifact, _ in read_by.values():
        verb, *words = reader.command(artifact)
        if verb in STAGES:
            compose.plan(verb, words)
    next_to = {
        "artifacts ls": None,
        "artifacts ls --home none": "run quickstart",
        "artifacts show policy:v1": "artifacts lineage policy:v1",
        "artifacts lineage policy:v1": "artifacts verify policy:v1",
        "artifacts verify policy:v1": read_by["policy:v1"][1],
        "artifacts add disk/data/v1": "rl +recipe=codev data=data:v2",
        "artifacts rm facts:v1 --dry-run": "artifacts rm facts:v1",
        "artifacts rm facts:v1": "artifacts ls",
        "artifacts gc": "artifacts ls",
        "benchmarks ls": "benchmarks show vstar",
        "benchmarks show vstar": "benchmarks get vstar --into benchmarks",
        "benchmarks check disk vstar": "benchmarks get vstar --into disk",
        "config show rl +recipe=codev scale=tiny": "rl +recipe=codev scale=tiny",
        "config signals": "config show rl +recipe=toolsrl",
        "plan +recipe=codev scale=paper cluster=1x1x20GB": "plan --fit +recipe=codev scale=paper cluster=1x1x20GB",
        "run": "run quickstart --dry",
        "run quickstart --list": "run quickstart --dry",
    }
    capsys.readouterr()
    for typed, expected in next_to.items():
        command(typed.split())
        last = capsys.readouterr().err.splitlines()[-1]
        printed = last.removeprefix("vtcli: next: vtcli ")
        if printed == last or printed != (expected or printed):
            wrong.append(f"{typed}: {last}")
    assert not wrong, "\n".join(wrong)
