"""Frames of a video by index, as decord gives them, decoded by FFmpeg in the process that asks.

It imports nothing of the sandbox. It must not know who reads.
"""
