"""Arithmetic of a training step: credit, selection, packing, losses, curriculum.

One subject a file, all of it pure: no file, network, clock or device. It may import ``schema``, ``protocols``,
``errors`` and ``config.bounds``. Only ``losses`` needs torch. It must not know a paper, a model or an engine.
"""
