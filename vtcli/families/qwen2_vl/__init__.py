"""Qwen2-VL: what differs from ``families.qwen_vl``, the one family room that it may import."""
