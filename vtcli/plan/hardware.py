"""Peak figures of GPUs by their data sheets, and clusters of them.

``bf16`` and ``fp32`` are dense peaks in TFLOP/s (fp32 without TF32, as torch computes by default). ``memory`` is the
value that nvidia-smi lists, in GiB; ``bandwidth`` is that memory's, in GB/s. All links are in GB/s. ``link`` is one
direction of NVLink, or of PCIe without NVLink, between the GPUs of a machine. ``host`` is one direction of PCIe.
``network`` is one GPU's share between machines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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


GPUS: Mapping[str, Gpu] = {
    gpu.kind: gpu
    for gpu in (
        Gpu("H100", 79.6, 989, 67, 3350, 450, 64, 50, "NVIDIA H100 SXM data sheet; DGX H100: 400 Gb/s per GPU"),
        Gpu("H200", 140.4, 989, 67, 4800, 450, 64, 50, "NVIDIA H200 SXM data sheet; DGX H200: 400 Gb/s per GPU"),
        Gpu("B200", 179.0, 2250, 75, 7700, 900, 64, 50, "NVIDIA HGX B200 data sheet; DGX B200: 400 Gb/s per GPU"),
        Gpu(
            "A100-80", 80.0, 312, 19.5, 2039, 300, 32, 25, "NVIDIA A100 80GB SXM data sheet; DGX A100: 200 Gb/s per GPU"
        ),
        Gpu("L40S", 45.0, 362, 91.6, 864, 32, 32, 12.5, "NVIDIA L40S data sheet, PCIe 4; 100 Gb/s per GPU assumed"),
        Gpu("L20", 45.0, 119.5, 59.8, 864, 32, 32, 12.5, "NVIDIA L20 data sheet, PCIe 4; 100 Gb/s per GPU assumed"),
    )
}


def of_device(name: str) -> Gpu | None:
    """The GPU of the table by the driver's name of a device; None for one that it does not have.

    Example: "NVIDIA A100-SXM4-80GB" is A100-80, and "NVIDIA GH200 480GB" is H200: Grace's names begin with a G.
    """
    words = {word.removeprefix("G") for word in name.upper().replace("-", " ").split()}
    return next((gpu for kind, gpu in GPUS.items() if kind.partition("-")[0] in words), None)


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
    """Read ``4x8xH200`` as four machines of eight H200 each. ``more`` holds kinds measured here, beside the table's.

    Raises:
        ConfigError: another form, no machine or GPU, or a kind without known figures.
    """
    kinds = {**GPUS, **more}
    match = re.fullmatch(r"(\d+)x(\d+)x(.+)", text.strip())
    if not match or min(int(match[1]), int(match[2])) < 1:
        raise ConfigError(
            f"cluster={text}: expected NODESxGPUSxKIND, say 4x8xH200 for four machines of eight H200 each. "
            f"Kinds: {', '.join(kinds)}."
        )
    gpu = {kind.lower(): g for kind, g in kinds.items()}.get(match[3].lower())
    if gpu is None:
        hint = " (CPU after `vtcli plan --measure`)" if match[3].lower() == "cpu" else ""
        raise ConfigError(f"cluster={text}: there are no numbers for {match[3]!r}{hint}. Kinds: {', '.join(kinds)}.")
    return Cluster(int(match[1]), int(match[2]), gpu)
