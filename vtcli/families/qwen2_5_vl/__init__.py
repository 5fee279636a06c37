"""Qwen2.5-VL (and Qwen2-VL)."""
