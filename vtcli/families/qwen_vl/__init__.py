"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and their mixtures of experts: one class, a row of constants for each
(``family.py``); chat, patches and positions, vision towers, vLLM's settings, the files of a miniature. It must not know
another family, and nothing outside ``vtcli.families`` imports it."""
