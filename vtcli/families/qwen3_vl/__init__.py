"""Qwen3-VL, the dense models: what differs from ``families.qwen_vl``, the one family room that it may import."""
