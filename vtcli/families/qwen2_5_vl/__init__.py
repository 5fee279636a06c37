"""Qwen2.5-VL."""
