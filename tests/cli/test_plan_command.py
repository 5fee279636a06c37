"""``vtcli plan`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import yaml
from cases import each_case
from typer.testing import CliRunner

from vtcli.cli.main import app
from vtcli.engines import calibrate
from vtcli.errors import ConfigError, EngineError, InputError, VtcliError
from vtcli.plan.constants import ON_ANY_DEVICE, SOURCES, Constants
from vtcli.runbook import cost

ROOT = Path(__file__).resolve().parents[2]
PAPER = ["+recipe=toolsrl", "scale=paper"]


def plan(*argv: str, home: Path) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["plan", *argv, f"home={home}", "--json"], catch_exceptions=False)
    assert done.exit_code in (0, 3)
    found = json.loads(done.stdout)
    assert found["fits"] == (done.exit_code == 0)
    return found


def test_the_recipes_sizes_are_planned(tmp_path: Path) -> None:
    found = plan(*PAPER, "cluster=4x8xH200", home=tmp_path)
    assert found["model"] == "Qwen2.5-VL-7B"
    assert found["steps"] == 400  # two phases of 200
    assert found["workload"]["prompts"] * found["workload"]["group_size"] == 4096
    assert found["gpu_hours"] == pytest.approx(found["hours"] * 32)
    assert set(found["constants"]) == set(SOURCES)


def test_engines_of_their_own_are_planned_as_the_engine_says(tmp_path: Path) -> None:
    servers = ["engine=vllm_server", "engine.servers=2", "engine.tensor_parallel=2"]
    servers += ["rl.steps_ahead=1", "rl.backend.sleep=false"]
    found = plan(*PAPER, "cluster=4x8xH200", *servers, home=tmp_path)
    assert (found["layout"]["serving"], found["layout"]["tensor_parallel"], found["layout"]["ahead"]) == (4, 2, True)
    assert found["step_s"]["overlap"] < 0
    colocated = plan(*PAPER, "cluster=4x8xH200", home=tmp_path)
    assert (colocated["layout"]["serving"], colocated["layout"]["tensor_parallel"]) == (0, 1)


@each_case(
    ("cluster", "engine", "places"),
    [
        ("1x1xH100", ["engine.gpu_memory=0.3"], (0, 1, 0)),  # docs/gpu.md: the one GPU is the learner's too
        ("1x8xH100", ["engine.gpus=[0]"], (0, 1, 0)),
        ("1x8xH100", ["engine.gpus=[6,7]", "engine.servers=2"], (2, 0, 0)),
        ("1x8xH100", ["engine.servers=8", "engine.gpu_memory=0.4"], (0, 8, 0)),
        ("1x8xH100", ["engine.urls=[http://a:1,http://b:1]"], (0, 0, 2)),
    ],
)
def test_servers_are_planned_where_the_run_puts_them(
    tmp_path: Path, cluster: str, engine: list[str], places: tuple[int, int, int]
) -> None:
    argv = ["+recipe=toolsrl", "scale=gpu", f"cluster={cluster}", "engine=vllm_server", *engine]
    found = plan(*argv, home=tmp_path)
    layout, memory = found["layout"], found["memory_gib"]
    assert (layout["serving"], layout["sharing"], layout["elsewhere"]) == places
    shared = memory["policy"] + memory["cache"] + memory["encoder"] if places[1] else 0
    assert (shared > 0) == (places[1] > 0)
    learner = [memory[part] for part in ("context", "weights", "optimizer", "gradients", "activations", "vision")]
    rest = memory["reference"] + memory["working"] + memory["features"]
    assert memory["learning"] == pytest.approx(sum(learner) + rest + shared)


def test_host_memory_is_a_limit_where_it_is_given(tmp_path: Path) -> None:
    argv = ["+recipe=toolsrl", "scale=gpu", "cluster=1x1xH100"]
    free = plan(*argv, home=tmp_path)
    m = free["memory_gib"]
    needed = max(m["host_loading"], m["host"] + m["host_checkpoint"] + m["host_images"] + m["host_gathered"])
    assert (free["fits"], m["host_limit"]) == (True, None)
    assert plan(*argv, f"plan.host_gib={needed / 0.95 + 1}", home=tmp_path)["fits"]
    small = plan(*argv, f"plan.host_gib={needed / 0.95 - 1}", home=tmp_path)
    assert not small["fits"]
    assert small["advice"]
    assert plan(*argv, f"plan.host_gib={needed / 0.95 - 1}", *small["advice"], home=tmp_path)["fits"]
    tight = plan(*argv, f"plan.host_gib={(m['host'] + m['host_images']) / 0.95 + 1}", home=tmp_path)
    assert "rl.checkpoint_beside=false" in tight["advice"]


def test_servers_that_do_not_fit_a_machine_are_refused_by_the_plan() -> None:
    argv = ["plan", "+recipe=toolsrl", "scale=gpu", "cluster=1x1xH100", "engine=vllm_server"]
    done = CliRunner().invoke(app, argv)
    assert isinstance(done.exception, ConfigError)
    assert "engine.gpu_memory to at most 0.5 to share" in str(done.exception)


@each_case(
    ("word", "said"),
    [
        ("rl.loss.kl_coef=null", "rl.loss.kl_coef: expected a number, got None"),
        ("rl.phases=5", "rl.phases: expected a list"),
        ("rl.phases=[{name: a}]", r"rl.phases.0.steps: expected a whole number, got None"),
    ],
)
def test_a_value_of_another_kind_is_an_error_of_the_plan_too(word: str, said: str) -> None:
    done = CliRunner().invoke(app, ["plan", "+recipe=toolsrl", "cluster=1x8xH100", word])
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)


def test_what_is_advised_can_be_given_and_then_fits(tmp_path: Path) -> None:
    argv = [*PAPER, "cluster=1x8xH200", "rl.backend.dtype=float32", "rl.backend.zero_stage=1"]
    argv.append("rl.backend.activation_checkpointing=false")
    first = plan(*argv, home=tmp_path)
    assert not first["fits"]
    given = {change.partition("=")[0] for change in first["advice"]}
    kept = [override for override in argv if override.partition("=")[0] not in given]
    then = plan(*kept, *first["advice"], home=tmp_path)
    assert then["fits"]
    assert then["gpu_hours"] == pytest.approx(first["with_advice"]["gpu_hours"])


def test_tables_name_every_part(tmp_path: Path) -> None:
    argv = [
        "plan",
        *PAPER,
        "cluster=4x8xH200",
        f"home={tmp_path}",
    ]
    shown = CliRunner().invoke(app, argv, catch_exceptions=False).stdout
    for word in ("weights", "gradients", "optimizer", "activations", "cache", "vision", "generation", "tools", "sync"):
        assert word in shown
    assert "GPU-hours" in shown
    assert "assumed" in shown


def test_model_may_be_a_conf_name_a_hub_name_or_a_folder(tmp_path: Path) -> None:
    argv = [*PAPER, "cluster=1x8xH200"]
    assert plan(*argv, "model=qwen2_5_vl_3b", home=tmp_path)["model"] == "Qwen2.5-VL-3B"
    assert plan(*argv, "model=Qwen/Qwen3-VL-8B-Instruct", home=tmp_path)["parameters"] == 8_767_123_696
    folder = plan(*argv, f"model={tiny_model.folder()}", home=tmp_path)
    assert folder["parameters"] == sum(p.numel() for p in tiny_model.model().parameters())


def test_code_environments_and_recipes_settings_count(tmp_path: Path) -> None:
    argv = [*PAPER, "cluster=4x8xH200"]
    assert plan(*argv, "+env=codev", home=tmp_path)["step_s"]["tools"] > plan(*argv, home=tmp_path)["step_s"]["tools"]
    kl = plan(*argv, "rl.reference=true", "rl.updates_per_step=2", home=tmp_path)
    assert kl["step_s"]["logprobs"] > 0
    assert kl["memory_gib"]["reference"] > 0


@each_case(
    ("argv", "words"),
    [
        ([], "vtcli plan needs a cluster, because there is no GPU here: cluster=NODESxGPUSxKIND"),
        (["cluster=4x8"], "expected NODESxGPUSxKIND"),
        (["cluster=0x8xH200"], "expected NODESxGPUSxKIND"),
        (["cluster=4x8xH300"], "no numbers for 'H300'"),
        (["cluster=1x1xCPU"], "CPU after `vtcli plan --measure`"),
        (["cluster=1x8xH200", "model=gpt-2"], "neither a folder, an artifact, nor a model of known sizes"),
        (["cluster=1x8xH200", "plan.lengths.turnz=3"], "Did you mean 'plan.lengths.turns'?"),
        (["cluster=1x8xH200", "plan.lengths.image=[0,5]"], "must be at least 1"),
        (["cluster=1x8xH200", "rl.backend.zero_stage=4"], "rl.backend.zero_stage"),
        (["cluster=1x8xH200", "engine=vllm", "engine.gpu_memory=2"], "must be above 0 and at most 1, got 2"),
        (["cluster=1x8xH200", "plan.host_gib=-5"], "plan.host_gib: must be above 0, got -5"),
        (["cluster=1x8xH200", "rl.group_size=0"], "rl.group_size=0: at least 1 is needed"),
        (["cluster=1x8xH200", "agent.limits.max_tokens=500"], "more than agent.limits.max_tokens=500"),
        (
            ["cluster=1x8xH200", "rl.backend.batch_tokens=8192"],
            "batch_tokens=8192 is below rl.agent.limits.max_tokens=28672",
        ),
        (["cluster=1x8xH200", "rl.backend.zero_stage=3"], "sleep=true needs zero_stage 1 or 2, got 3"),
        (["cluster=1x8xH200", "rl.backend.zero_stage=1"], "dtype=bfloat16 needs zero_stage 2 or 3"),
        (["cluster=1x8xH200", "engine=vllm_server", "rl.steps_ahead=1"], "neither can give its memory up"),
    ],
)
def test_a_mistake_is_one_clear_error(argv: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(VtcliError) as caught:
        cost.run([*PAPER, f"home={tmp_path}", *argv])
    assert words in str(caught.value)


def test_a_recipe_without_rl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no rl"):
        cost.run(["cluster=1x8xH200", f"home={tmp_path}"])


def test_measured_constants_are_used_where_they_belong(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(
        json.dumps({"kind": "CPU", "constants": {"tool_latency_s": 0.5, "matmul_efficiency": 0.9}, "gpu": None})
    )
    found = plan(*PAPER, "cluster=4x8xH200", home=tmp_path)["constants"]
    assert found["tool_latency_s"]["value"] == 0.5  # of the host
    assert found["tool_latency_s"]["source"].startswith("measured")
    assert found["matmul_efficiency"]["value"] == Constants().matmul_efficiency  # a CPU says nothing of an H200
    assert "tool_latency_s" in ON_ANY_DEVICE


@each_case(
    "content",
    ["{", "{}", '{"kind": "H200", "constants": {"speed": 1}}', '{"kind": "CPU", "constants": {"tool_latency_s": -1}}'],
)
def test_a_broken_file_of_constants_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(InputError, match="key 'kind'" if content == "{}" else r"plan\.json"):
        cost.run([*PAPER, "cluster=4x8xH200", f"home={tmp_path}"])


@pytest.mark.slow
def test_what_is_measured_here_plans_the_tiny_model_here(tmp_path: Path) -> None:
    sizes = yaml.safe_load((ROOT / "conf" / "model" / "tiny.yaml").read_text())["architecture"]
    calibrate.write(tmp_path / "plan.json", "qwen2_5_vl", sizes)
    found = cost.run(["+recipe=toolsrl", "scale=tiny", "cluster=1x1xCPU", f"home={tmp_path}"])
    assert found.memory.fits
    assert {"matmul_efficiency", "layer_overhead_s", "decode_overhead_s", "tool_latency_s"} <= set(
        found.constants.measured
    )
    assert found.constants.matmul_efficiency > 0  # how large it is depends on what else this machine does
    assert found.arch.text.layers == sizes["layers"]


def test_a_disturbed_measurement_is_refused_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = {"matmul_efficiency": -0.85, "decode_overhead_s": 0.01}
    monkeypatch.setattr(calibrate, "measure", lambda *_: {"kind": "CPU", "constants": constants, "gpu": None})
    with pytest.raises(EngineError, match=r"matmul_efficiency=-0\.85"):
        calibrate.write(tmp_path / "plan.json", "qwen2_5_vl", {})
    assert list(tmp_path.iterdir()) == []


def test_fit_prints_overrides_to_paste(tmp_path: Path) -> None:
    argv = [*PAPER, "cluster=1x8xH200", "rl.backend.sleep=false", "engine.sleep=0"]
    assert not plan(*argv, home=tmp_path)["fits"]
    shown = CliRunner().invoke(app, ["plan", *argv, f"home={tmp_path}", "--fit"], catch_exceptions=False)
    assert shown.exit_code == 0
    overrides = shown.stdout.splitlines()[0].split()
    kept = [a for a in argv if a.partition("=")[0] not in {o.partition("=")[0] for o in overrides}]
    assert plan(*kept, *overrides, home=tmp_path)["fits"]

    told = CliRunner().invoke(app, ["plan", *argv, f"home={tmp_path}", "--fit", "--json"], catch_exceptions=False)
    assert (told.exit_code, json.loads(told.stdout)["advice"]) == (0, overrides)


def test_the_plan_reads_the_runs_own_keys(tmp_path: Path) -> None:
    argv = [*PAPER, "cluster=4x8xH200", "engine.gpu_memory=0.7", "engine.sleep=1", "engine.max_batch=64"]
    found = plan(*argv, "rl.backend.offload=optimizer", "rl.backend.sleep=false", home=tmp_path)["layout"]
    assert (found["gpu_memory"], found["sleep"], found["live"]) == (0.7, 1, 64)
    assert (found["offload"], found["learner_sleep"]) == ("optimizer", False)
    servers = plan(*PAPER, "cluster=4x8xH200", "engine=vllm_server", home=tmp_path)["layout"]
    assert (servers["gpu_memory"], servers["sleep"], servers["serving"]) == (0.9, 0, 1)
