"""Qwen3-VL-MoE: Qwen3-VL with a mixture of experts in the language model."""
