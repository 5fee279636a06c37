"""Cards by the driver's names of them, and clusters of cards that the table does not have."""

from __future__ import annotations

import pytest

from vtcli.errors import ConfigError
from vtcli.plan.hardware import GPUS, of_device, parse_cluster

NAMES = {
    "NVIDIA GeForce RTX 3090 Ti": "RTX3090",
    "NVIDIA GeForce RTX 4090": "RTX4090",
    "NVIDIA GeForce RTX 5090": "RTX5090",
    "NVIDIA RTX A6000": "A6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX6000Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTXPRO6000",
    "Quadro RTX 6000": None,
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "NVIDIA L40": None,
    "NVIDIA H100 PCIe": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "B200",
    "NVIDIA GH200 480GB": "GH200",
    "Tesla T4": None,
}


def test_a_card_is_known_by_the_drivers_name() -> None:
    found = {name: of_device(name) for name in NAMES}
    assert {name: gpu and gpu.kind for name, gpu in found.items()} == NAMES
    assert [getattr(of_device("NVIDIA A100-SXM4", size), "kind", None) for size in (39.6, 79.3)] == [
        "A100-40",
        "A100-80",
    ]
    assert {gpu.kind for gpu in found.values() if gpu} | {"A100-40", "A100-80", "L20"} == set(GPUS)


def test_an_unknown_card_is_planned_by_its_memory() -> None:
    gpu = parse_cluster("1x2x20GB", {}).gpu
    assert (gpu.memory, gpu.kind, gpu.bandwidth) == (20.0, "20GB", GPUS["L4"].bandwidth)
    assert "speeds of L4: assumed" in gpu.source
    assert parse_cluster("1x2x35.5GiB", {}).gpu.memory == 35.5
    for text in ("1x2x0GB", "1x2xGB", "1x2xT4"):
        with pytest.raises(ConfigError, match="another card by its memory"):
            parse_cluster(text, {})
