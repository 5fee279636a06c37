"""Peak figures of GPUs by their data sheets, and clusters of them.

``bf16`` and ``fp32`` are dense peaks in TFLOP/s (fp32 without TF32, as torch computes by default). ``memory`` is the
value that nvidia-smi lists, in GiB; ``bandwidth`` is that memory's, in GB/s. All links are in GB/s. ``link`` is one
direction of NVLink, or of PCIe without NVLink, between the GPUs of a machine. ``host`` is one direction of PCIe.
``network`` is one GPU's share between machines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vtcli.errors import ConfigError


@dataclass(frozen=True)
class Gpu:
    """One kind of device; the numbers are explained above."""

    kind: str
    memory: float
    bf16: float
    fp32: float
    bandwidth: float
    link: float
    host: float
    network: float
    source: str


def _card(kind: str, memory: float, bf16: float, fp32: float, bandwidth: float, pcie: float, source: str) -> Gpu:
    """A card without NVLink."""
    return Gpu(kind, memory, bf16, fp32, bandwidth, pcie, pcie, 12.5, f"{source}; 100 Gb/s per GPU assumed")


GPUS: Mapping[str, Gpu] = {
    gpu.kind: gpu
    for gpu in (
        Gpu("H100", 79.6, 989, 67, 3350, 450, 64, 50, "NVIDIA H100 SXM data sheet; DGX H100: 400 Gb/s per GPU"),
        Gpu("H200", 140.4, 989, 67, 4800, 450, 64, 50, "NVIDIA H200 SXM data sheet; DGX H200: 400 Gb/s per GPU"),
        Gpu("B200", 179.0, 2250, 75, 7700, 900, 64, 50, "NVIDIA HGX B200 data sheet; DGX B200: 400 Gb/s per GPU"),
        Gpu("GH200", 95.6, 989, 67, 4000, 450, 450, 50, "NVIDIA GH200 data sheet, 96 GB; host by NVLink-C2C"),
        Gpu("A100-80", 80.0, 312, 19.5, 2039, 300, 32, 25, "NVIDIA A100 80GB SXM data sheet; DGX A100: 200 Gb/s a GPU"),
        Gpu("A100-40", 40.0, 312, 19.5, 1555, 300, 32, 25, "NVIDIA A100 40GB SXM data sheet; DGX A100: 200 Gb/s a GPU"),
        _card("L40S", 45.0, 362, 91.6, 864, 32, "NVIDIA L40S data sheet, PCIe 4"),
        _card("L20", 45.0, 119.5, 59.8, 864, 32, "NVIDIA L20 data sheet, PCIe 4"),
        _card("L4", 22.5, 121, 30.3, 300, 32, "NVIDIA L4 data sheet, PCIe 4"),
        _card("A6000", 48.0, 154.8, 38.7, 768, 32, "NVIDIA RTX A6000 data sheet, PCIe 4"),
        _card("RTX6000Ada", 48.0, 364, 91.1, 960, 32, "NVIDIA RTX 6000 Ada data sheet, PCIe 4"),
        _card("RTXPRO6000", 95.6, 504, 126, 1792, 64, "NVIDIA RTX Blackwell PRO architecture paper, PCIe 5"),
        _card("RTX3090", 24.0, 71, 35.6, 936, 32, "NVIDIA GA102 architecture paper, fp32 sums, PCIe 4"),
        _card("RTX4090", 24.0, 165, 82.6, 1008, 32, "NVIDIA Ada architecture paper, fp32 sums, PCIe 4"),
        _card("RTX5090", 31.8, 210, 105, 1792, 64, "NVIDIA RTX Blackwell architecture paper, fp32 sums, PCIe 5"),
    )
}

WORDS: Mapping[str, frozenset[str]] = {
    "A100-80": frozenset({"A100"}),
    "A100-40": frozenset({"A100"}),
    "RTX6000Ada": frozenset({"RTX", "6000", "ADA"}),
    "RTXPRO6000": frozenset({"PRO", "6000"}),
    "RTX3090": frozenset({"3090"}),
    "RTX4090": frozenset({"4090"}),
    "RTX5090": frozenset({"5090"}),
}
"""Words of the driver's name for a kind, where they are not the kind itself."""


def of_device(name: str, memory: float | None = None) -> Gpu | None:
    """The GPU of the table by the driver's name of a device, and by its ``memory`` in GiB where several are so named;
    None for a device that the table lacks.

    Example: "NVIDIA A100-SXM4-40GB" with 40 GiB is A100-40, and "Quadro RTX 6000", which is older, is None.
    """
    words = set(name.upper().replace("GB200", "B200").replace("-", " ").split())
    found = [gpu for kind, gpu in GPUS.items() if WORDS.get(kind, frozenset({kind})) <= words]
    return min(found, key=lambda gpu: abs(gpu.memory - (memory or math.inf)), default=None)


def like(memory: float, kind: str) -> Gpu:
    """A GPU that the table does not have, by its memory in GiB: that decides what fits. Its speeds are those of the
    card whose memory is nearest, and of the slowest of equals."""
    nearest = min(GPUS.values(), key=lambda gpu: (abs(gpu.memory - memory), gpu.bf16))
    return replace(nearest, kind=kind, memory=memory, source=f"memory as given, speeds of {nearest.kind}: assumed")


@dataclass(frozen=True)
class Cluster:
    """``nodes`` machines of ``per_node`` GPUs each."""

    nodes: int
    per_node: int
    gpu: Gpu
    host: float | None = None  # GiB of memory of each machine; None: unknown

    @property
    def gpus(self) -> int:
        return self.nodes * self.per_node

    @property
    def link(self) -> float:
        """GB/s of the slowest link in a collective over all GPUs."""
        return self.gpu.link if self.nodes == 1 else min(self.gpu.link, self.gpu.network)

    def __str__(self) -> str:
        return f"{self.nodes}x{self.per_node}x{self.gpu.kind}"


def parse_cluster(text: str, more: Mapping[str, Gpu]) -> Cluster:
    """Reads ``4x8xH200`` as four machines of eight H200 each, and ``1x2x20GB`` as one with two GPUs of 20 GiB that the
    table does not have. ``more`` holds kinds measured here, beside the table's.

    Raises:
        ConfigError: another form, no machine or GPU, or a kind without known figures.
    """
    kinds = {**GPUS, **more}
    match = re.fullmatch(r"(\d+)x(\d+)x(.+)", text.strip())
    if not match or min(int(match[1]), int(match[2])) < 1:
        raise ConfigError(
            f"cluster={text}: expected NODESxGPUSxKIND, say 4x8xH200 for four machines of eight H200 each. "
            f"Kinds: {', '.join(kinds)}, or another card by its memory, say 1x2x20GB."
        )
    kind = match[3]
    gpu = {known.lower(): g for known, g in kinds.items()}.get(kind.lower()) or of_device(kind)
    if gpu is None and (size := re.fullmatch(r"(\d+(?:\.\d+)?)\s*gi?b", kind, re.IGNORECASE)) and float(size[1]) > 0:
        gpu = like(float(size[1]), kind)
    if gpu is None:
        hint = " (CPU after `vtcli plan --measure`)" if kind.lower() == "cpu" else ""
        raise ConfigError(
            f"cluster={text}: there are no numbers for {kind!r}{hint}. Kinds: {', '.join(kinds)}, or another card by "
            "its memory, say 1x2x20GB."
        )
    return Cluster(int(match[1]), int(match[2]), gpu)
