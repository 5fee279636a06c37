"""Images of Qwen3-VL: its patches. Pure."""

from __future__ import annotations

from vtcli.families.qwen_vl.patches import Patches

PATCHES = Patches(side=16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # Qwen3-VL's preprocessor_config.json
