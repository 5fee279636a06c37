"""The constants that no data sheet gives, each with its source. ``vtcli plan --measure`` measures some of them on the
machine at hand. The others are assumed, and every plan marks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from vtcli.errors import InputError


@dataclass(frozen=True)
class Constants:
    """The constants of a plan. ``SOURCES`` has the source of each value; ``measured`` names the constants
    that a measurement has replaced."""

    matmul_efficiency: float = 0.37  # share of the peak
    layer_overhead_s: float = 0.0072  # seconds per layer and micro-batch, forward and backward
    bandwidth_efficiency: float = 0.7  # share of the memory's bandwidth
    link_efficiency: float = 0.7  # share of NVLink's, PCIe's and the network's bandwidth
    decode_overhead_s: float = 0.005  # seconds per decoding step
    image_mpixels_per_s: float = 29.0  # megapixels per second and engine process
    tool_latency_s: float = 0.02  # seconds per call of a native tool
    code_latency_s: float = 0.031  # seconds per run of code
    code_cpu_s: float = 0.032  # core-seconds per run of code
    host_cores: float = 112.0  # cores of a machine
    usable_memory: float = 0.95  # share of a GPU's memory
    context_gib: float = 2.0  # GiB of CUDA's context, NCCL's buffers and libraries' workspaces
    engine_gib: float = 3.0  # GiB of a generating engine beside weights and cache
    asleep_gib: float = 1.0  # GiB that a sleeping engine keeps on the GPU
    rest_share: float = 0.1  # of the other parts' time
    measured: Mapping[str, str] = field(default_factory=dict[str, str])  # name -> on what it was measured

    def with_measured(self, values: Mapping[str, float], where: str) -> Constants:
        """These constants with measured values in place.

        Raises:
            InputError: a name that is not a constant, or a value that is not above 0.
        """
        for name, value in values.items():
            if name not in SOURCES:
                raise InputError(f"{where}: {name!r} is not a constant of vtcli plan. They are: {', '.join(SOURCES)}.")
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InputError(f"{where}: {name} is {value!r}; a number above 0 was expected. Measure again.")
        new = {name: float(value) for name, value in values.items()}
        return replace(self, **new, measured={**self.measured, **dict.fromkeys(new, where)})

    def rows(self) -> list[tuple[str, float, str]]:
        """Name, value and source of every constant."""
        named = [f.name for f in fields(self) if f.name != "measured"]
        return [
            (n, getattr(self, n), f"measured: {self.measured[n]}" if n in self.measured else SOURCES[n]) for n in named
        ]


SOURCES: Mapping[str, str] = {
    "matmul_efficiency": "calibrated on EasyR1's 7B rows, update time at micro-batches of 4 and 16 thousand tokens",
    "layer_overhead_s": "calibrated on the difference of the same two rows",
    "bandwidth_efficiency": "assumed",
    "link_efficiency": "assumed",
    "decode_overhead_s": "assumed: launches, sampling and scheduling of an engine with CUDA graphs",
    "image_mpixels_per_s": "vllm#58266: 14.0 images of 1275 x 1650 px per second, one thread",
    "tool_latency_s": "assumed: median of a native tool with encoding and resizing",
    "code_latency_s": "docs/sandbox.md: as code_cpu_s; without a queue a run takes its CPU time",
    "code_cpu_s": "docs/sandbox.md: a turn of codev in an episode of four, no replay, no transactions, CPU time",
    "host_cores": "DGX H100 data sheet: two processors of 56 cores",
    "usable_memory": "assumed: the rest is the driver's and fragmentation",
    "context_gib": "assumed",
    "asleep_gib": "assumed: vLLM moves weights, cache, runtime state and graphs; its log tells what is still in use",
    "engine_gib": "assumed: CUDA graphs and the activations of one prefill",
    "rest_share": "assumed: the aim of this project for everything else is at most 10 % of a step",
}
ON_ANY_DEVICE = ("image_mpixels_per_s", "tool_latency_s", "code_latency_s", "code_cpu_s")
"""Constants of the host. Measured on one machine, they are used for every cluster."""
