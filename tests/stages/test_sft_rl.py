"""synth → sft → rl → eval at the smallest size that is still the real thing: what they leave, in ranks, ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import world
from rl_world import KilledError
from small_runs import RL, SFT, kill_after_checkpoint, launched, lines, run

from stages import rl
from vtcli.errors import ConfigError, InputError

TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
TWO_RANKS_RL = [*RL, "name=two", "rl.backend.zero_stage=3", "rl.backend.offload=weights", "rl.keep_images=5"]
TWO_RANKS_RL += ["rl.validate.every=2", "rl.validate.prompts=3"]


def test_every_stage_leaves_its_artifact() -> None:
    from vtcli.engines.hf import load_model
    from vtcli.families.table import open_family
    from vtcli.runs.environment import PARTS, require_environment
    from vtcli.schema import Scored
    from vtcli.store.artifacts import ArtifactStore
    from vtcli.store.records import read

    store = ArtifactStore(world.store())
    assert {artifact.ref for artifact in store.ls()} == {
        f"{n}:v1" for n in ("demos", "data", "base", "policy", "report")
    }
    base, policy = store.resolve("base@latest", "model"), store.resolve("policy@latest", "model")
    for folder in (base.path, policy.path, policy.path / "phases" / "tools", policy.path / "phases" / "answers"):
        load_model(open_family(folder))
    for model in (base, policy):  # vtcli serve needs no recipe
        assert require_environment(model, model.ref, PARTS)["env"]["name"] == "native"
    best = min(lines(base.path / "metrics.jsonl"), key=lambda line: line["loss"])
    is_last = best["step"] == len(lines(base.path / "metrics.jsonl")) - 1
    last, kept = (folder / "model.safetensors" for folder in (base.path, base.path / "best"))
    assert (last.read_bytes() == kept.read_bytes()) is is_last
    load_model(open_family(policy.path / "best"))
    assert [line["step"] for line in lines(base.path / "metrics.jsonl")] == list(
        range(len(lines(base.path / "metrics.jsonl")))
    )
    found = lines(policy.path / "metrics.jsonl")
    assert [(line["step"], line["phase"]) for line in found] == [(0, "tools"), (1, "answers")]
    for line in found:
        assert line["rollouts"] == 6
        assert line["selected"] == 4
        assert line["broken"] == 0
        assert line.get("logprob_gap_max", 0.0) < 1e-4  # policy and learner agree
    scored = list(read(policy.path / "trajectories.jsonl", Scored))
    assert [s.trajectory.sample.form for s in scored] == ["tool"] * 6 + ["answer"] * 6
    assert [s.trajectory.error for s in scored] == [None] * 12
    assert {p.ref for p in policy.manifest.parents} == {"data:v1", "base:v1"}
    assert {p.ref for p in base.manifest.parents} == {"demos:v1"}
    assert store.resolve("demos@latest", "demos").manifest.seed == 0
    assert not [p for p in (store.root / ".work").iterdir() if p.is_dir()]
    assert (store.resolve("report@latest", "report").path / "report.html").exists()


def test_a_policy_stores_each_of_its_models_once() -> None:
    """The model is its last phase's, and the best one may be a phase's too: equal files are one on the disk."""
    policy = world.artifact("policy:v1").path
    files = list(policy.rglob("model.safetensors"))
    places = {path.parent.relative_to(policy).as_posix() for path in files}
    assert places == {".", "best", "phases/tools", "phases/answers"}
    contents = {path.read_bytes() for path in files}
    assert len({path.stat().st_ino for path in files}) == len(contents) < len(files)
    assert len({path.stat().st_ino for path in policy.rglob("tokenizer.json")}) == 1


@pytest.mark.slow
def test_two_ranks_roll_out_and_learn_the_same_as_one(home: Path) -> None:
    """Each rank takes half of the prompts; what is sampled depends on the sample and the step, not on the rank."""
    from safetensors.torch import load_file

    from vtcli.schema import Scored
    from vtcli.store.records import read

    launched(home, "rl", TWO_RANKS_RL, TWO_RANKS)
    one, two = home / "policy" / "v1", home / "two" / "v1"

    def sampled(*logs: Path) -> dict[tuple[str, str], list[list[tuple[int, ...]]]]:
        found: dict[tuple[str, str], list[list[tuple[int, ...]]]] = {}
        for scored in (s for log in logs for s in read(log, Scored)):
            sample = scored.trajectory.sample
            tokens = [turn.token_ids for turn in scored.trajectory.policy_turns]
            found.setdefault((sample.id, sample.form), []).append(tokens)
        return found

    assert [line["updated"] for line in lines(one / "metrics.jsonl")] == [1, 1]  # else equal weights would say nothing
    halves = [two / "trajectories.jsonl", two / "trajectories-1.jsonl"]
    assert [len(lines(half)) for half in halves] == [8, 4]  # 2 phases × 2 prompts and 1 prompt × group of 2
    assert sampled(*halves) == sampled(one / "trajectories.jsonl")
    assert [line["step"] for line in lines(two / "validation.jsonl")] == [0, 2]
    assert [line["validation/questions"] for line in lines(two / "validation.jsonl")] == [3, 3]
    shares = [two / "validation" / f"00000{name}.jsonl" for name in ("0", "0-1", "2", "2-1")]
    assert [len(lines(share)) for share in shares] == [2, 1, 2, 1]
    before, first, second = (
        load_file(home / name / "model.safetensors") for name in ("base/v1", "policy/v1", "two/v1")
    )
    moved = sum(float((first[name] - before[name]).square().sum()) for name in first)
    apart = sum(float((first[name] - second[name]).square().sum()) for name in first)
    assert moved > 0
    assert apart < 1e-7 * moved  # Adam makes much of gradients that are rounding alone: a bound on all, not on each


@pytest.mark.slow
def test_two_ranks_build_one_model_and_imitate_as_one_rank_does(home: Path) -> None:
    frugal = ["sft.backend.zero_stage=3", "sft.backend.activation_checkpointing=true"]
    launched(home, "sft", [*SFT, "name=two-base", *frugal], TWO_RANKS)
    one, two = (lines(home / name / "v1" / "metrics.jsonl") for name in ("base", "two-base"))
    assert [line["tokens"] for line in one] == [line["tokens"] for line in two]
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in two], rel=1e-4)


@pytest.mark.slow
def test_a_run_that_slurm_ends_says_so_leaves_nothing_half_and_goes_on(home: Path) -> None:
    again = [*RL, "reuse=false", "name=policy-ended"]
    done = kill_after_checkpoint(home, "rl", again, signal.SIGTERM)
    assert done.returncode == 143, done.stdout[-4000:]
    assert done.stdout.rstrip().endswith("terminated; the same command continues where it stopped.")
    assert "Traceback" not in done.stdout
    assert not (home / "policy-ended").exists()
    (work,) = (home / ".work").glob("rl-*/")
    assert not [path for path in work.rglob("*") if path.suffix == ".draft" or path.name.startswith(".tmp")]
    run(home, "rl", again)
    assert_same(home / "policy-ended" / "v1", home / "policy" / "v1")


def test_memory_engine_and_time_outs_can_change_when_a_killed_run_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Updates are equal but for rounding: micro-batches of one row and of all sum the same gradients."""
    log_step = rl.log_step

    def die(*given: Any) -> None:
        if given[3] == 1:
            raise KilledError
        log_step(*given)

    monkeypatch.setattr(rl, "log_step", die)
    again = [*RL, "reuse=false", "name=frugal"]
    with pytest.raises(KilledError):
        run(home, "rl", again)
    monkeypatch.setattr(rl, "log_step", log_step)
    (work,) = (home / ".work").glob("rl-*/checkpoints")
    changed = ["rl.backend.batch_tokens=400", "rl.backend.activation_checkpointing=true", "engine.max_batch=2"]
    changed += ["agent.limits.timeout_s=500", "sandbox.live=7", "rl.data=data:v1", f"rl.model={home / 'base' / 'v1'}"]
    run(home, "rl", [*again, *changed])
    assert "rl 1/2 from a checkpoint" in capfd.readouterr().err and not work.exists()
    whole, resumed = (lines(home / name / "v1" / "metrics.jsonl") for name in ("policy", "frugal"))
    for name in ("reward", "tokens", "loss", "grad_norm"):
        assert [line[name] for line in whole] == pytest.approx([line[name] for line in resumed], rel=1e-3, abs=1e-6)


def test_a_run_that_updates_nothing_ends_with_an_error_that_says_why(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alike = "{name:alike,steps:3,form:answer,reward:{_target_:uneven.alike}}"
    nothing = [*RL, "name=nothing", f"rl.phases=[{alike}]", "rl.checkpoint_best=null"]
    with pytest.raises(InputError, match=r"\b6 in groups .*rl\.allow_no_update"):
        run(home, "rl", nothing)
    assert "3 steps in a row updated nothing" in caplog.text
    assert not (home / "nothing").exists()
    run(home, "rl", [*nothing, "rl.allow_no_update=true"])
    assert len(lines(home / "nothing" / "v1" / "metrics.jsonl")) == 3


def test_a_limit_below_every_prompt_is_refused_before_the_first_rollout(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"^rl\.agent\.limits\.max_tokens: is 6"):
        run(home, "rl", [*RL, "name=roomless", "agent.limits.max_tokens=6"])
    assert not [path for path in (home / ".work").glob("rl-*/trajectories.jsonl") if path.stat().st_size]


def assert_same(resumed: Path, whole: Path) -> None:
    """Bit for bit: all weights, and all that the log says but for the times."""
    for weights in sorted(whole.rglob("model.safetensors")):
        assert weights.read_bytes() == (resumed / weights.relative_to(whole)).read_bytes(), weights

    def losses(folder: Path) -> list[tuple]:
        found = lines(folder / "metrics.jsonl")
        return [tuple((k, v) for k, v in line.items() if not k.startswith("time/")) for line in found]

    assert losses(resumed) == losses(whole)
