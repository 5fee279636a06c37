"""Qwen3-VL, the dense models."""
