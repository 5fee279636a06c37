"""Qwen3-VL-MoE: Qwen3-VL with a mixture of experts in the language model.

It may import ``families.qwen_vl`` and ``families.qwen3_vl``, and must not know another family.
"""
