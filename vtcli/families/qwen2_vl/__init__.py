"""Qwen2-VL: what differs from ``families.qwen_vl``.

It may import that room and what all families share. It must not know another family.
"""
