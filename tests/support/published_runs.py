"""Published step times beside the model's figures for the same runs.

Two constants are calibrated on the first two rows (update time alone). No other row is fitted. Facts that a source
leaves open are assumed here, marked in the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vtcli.plan.architecture import KNOWN, Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.estimate import Plan, evaluate
from vtcli.plan.hardware import Cluster, parse_cluster
from vtcli.plan.job import Layout, Lengths, Workload

EASYR1 = "EasyR1 b44b311, assets/baselines.md"
DEEPEYES = "Visual-Agent/DeepEyes#14"


@dataclass(frozen=True)
class PublishedRun:
    """A published run. ``published`` holds seconds of a step's ``update``, ``generation``, ``logprobs`` or ``step``, or
    ``gpu_hours``."""

    name: str
    source: str
    assumed: str
    model: str
    cluster: str
    work: Workload
    layout: Layout
    published: Mapping[str, float]
    calibrated: bool = False

    @property
    def arch(self) -> Architecture:
        return KNOWN[self.model]

    def plan(self, constants: Constants) -> Plan:
        return evaluate(self.arch, self.work, self.layout, self._cluster, constants)

    @property
    def _cluster(self) -> Cluster:
        return parse_cluster(self.cluster, {})


@dataclass(frozen=True)
class PublishedFigure:
    """One published figure beside the model's."""

    case: PublishedRun
    part: str
    published: float
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.published


def _easyr1(
    row: tuple[str, str, float, float, float], micro: int, parallel: int, calibrated: bool = False
) -> PublishedRun:
    """A row of EasyR1's table: model, GPU, tokens per second and GPU, seconds per step, MFU of the update.

    Published: 512 x 5 trajectories, 4 updates (mini-batches of 128), KL to a reference; micro-batches of ``micro`` x
    4096 tokens (2048 + 2048, dynamic), activation checkpointing, FSDP, images of at least 262 144 px.

    Tokens of a trajectory are throughput x time / 2560. The update's time is its FLOPs by EasyR1's own count / MFU.
    That count is 6 x weights x tokens and attention, without vision tower and recomputation. Assumed: 130 tokens of
    text around an image of 352 tokens.
    """
    model, kind, throughput, step_s, mfu = row
    arch, peak = KNOWN[model], parse_cluster(f"1x8x{kind}", {}).gpu.bf16
    tokens = throughput * step_s * 8 / 2560
    lengths = Lengths(130, (400, 300), turns=0, turn_tokens=round(tokens - 130 - 352))
    work = Workload(
        prompts=512, learnt=512, group_size=5, steps=1, updates_per_step=4, old_logprobs=True, reference=True,
        max_turns=0, max_tokens=4096, max_turn_tokens=2048, min_pixels=262144, max_pixels=4194304, lengths=lengths,
    )  # fmt: skip
    counted = arch.text.layers * (arch.text.layer_weights + 2 * tokens * arch.text.q) + 2 * arch.text.head_weights
    update = 6 * counted * tokens * 2560 / 8 / (mfu * peak * 1e12)
    return PublishedRun(
        name=f"{model} single turn, 8 {kind}, micro-batch {micro}",
        source=EASYR1,
        assumed="text of the prompt 130 tokens",
        model=model,
        cluster=f"1x8x{kind}",
        work=work,
        layout=Layout(
            3,
            "bfloat16",
            micro * 4096,
            True,
            tensor_parallel=parallel,
            gpu_memory=0.9,
            learner_sleep=True,
            shared_prompts=False,
        ),
        published={"update": update, "step": step_s},
        calibrated=calibrated,
    )


def _deepeyes(kind: str) -> PublishedRun:
    """DeepEyes' step of 6 426 750 tokens, of which 802 057 / 0.986 = 813 445 come after the prompt, observations
    included. The released script has 4096 trajectories: 1370 and 199 tokens each. Its micro-batches are single
    trajectories."""
    lengths = Lengths(400, (1008, 756), turns=0.5, turn_tokens=100, observation_tokens=20, observation_image=(252, 252))
    work = Workload(
        prompts=256, learnt=256, group_size=16, steps=1, old_logprobs=True, max_turns=5, max_tokens=28672,
        max_turn_tokens=10240, lengths=lengths,
    )  # fmt: skip
    return PublishedRun(
        name=f"DeepEyes 7B, multi-turn, 8 GPUs taken as {kind}",
        source=DEEPEYES,
        assumed=f"GPUs are {kind} (not stated), 256 x 16 trajectories, split of the 1370 and 199 tokens",
        model="Qwen2.5-VL-7B",
        cluster=f"1x8x{kind}",
        work=work,
        layout=Layout(3, "bfloat16", 1024, True, live=1024, gpu_memory=0.9, learner_sleep=True, shared_prompts=False),
        published={"update": 860.1, "logprobs": 293.3, "generation": 802.1, "step": 2142.4},
    )


def _codev() -> PublishedRun:
    """CodeV's 200 steps of 256 x 8 trajectories. The released script has micro-batches of 16 and up to 10 turns of 4096
    tokens."""
    lengths = Lengths(900, (1008, 756), turns=1.5, turn_tokens=250, observation_tokens=40, observation_image=(560, 560))
    work = Workload(
        prompts=256, learnt=256, group_size=8, steps=200, old_logprobs=True, code=True, max_turns=10, max_tokens=28672,
        max_turn_tokens=4096, lengths=lengths,
    )  # fmt: skip
    return PublishedRun(
        name="CodeV 7B, code, 8 H200, 200 steps",
        source="CodeV, section 5.1; RenlyH/CodeV_internal c7eed11, codev_7b_H200.sh",
        assumed="all lengths (none is published); its judge of 32B is not in the model",
        model="Qwen2.5-VL-7B",
        cluster="1x8xH200",
        work=work,
        layout=Layout(3, "bfloat16", 32768, True, live=1024, gpu_memory=0.9, learner_sleep=True, shared_prompts=False),
        published={"gpu_hours": 288.0},
    )


def cases() -> tuple[PublishedRun, ...]:
    """All cases: the calibrated ones first, then those without any fit."""
    return (
        _easyr1(("Qwen2.5-VL-7B", "H100", 1600, 145, 0.160), 1, 2, calibrated=True),
        _easyr1(("Qwen2.5-VL-7B", "H100", 2000, 120, 0.232), 4, 2, calibrated=True),
        _easyr1(("Qwen2.5-VL-3B", "H100", 1800, 120, 0.081), 1, 2),
        _easyr1(("Qwen2.5-VL-32B", "H100", 620, 530, 0.258), 1, 8),
        _easyr1(("Qwen2.5-VL-7B", "L20", 410, 580, 0.265), 1, 2),
        _deepeyes("A100-80"),
        _deepeyes("H100"),
        _codev(),
    )


def compare(constants: Constants) -> list[PublishedFigure]:
    """Every published figure beside the model's."""
    found: list[PublishedFigure] = []
    for case in cases():
        plan = case.plan(constants)
        time = plan.time
        predicted = {
            "update": time.learner,
            "logprobs": time.logprobs,
            "generation": time.images + time.generation + time.tools,
            "step": time.total,
            "gpu_hours": plan.gpu_hours,
        }
        found += [PublishedFigure(case, part, value, predicted[part]) for part, value in case.published.items()]
    return found


if __name__ == "__main__":
    for row in compare(Constants()):
        unit = "GPU-h" if row.part == "gpu_hours" else "s"
        figures = f"{row.published:8.0f} {unit:<5} {row.predicted:8.0f} {unit:<5} {row.ratio - 1:+5.0%}"
        print(f"{row.case.name:<52} {row.part:<10} {figures}   {row.case.source}; assumed: {row.case.assumed}")
