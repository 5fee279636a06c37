"""Doing a claimed chain of operations again: ``plan`` is pure and runs in the trainer, ``redo`` touches pixels and runs
in a confined episode (``host.verifier``).

It may import ``provenance.trace`` and ``types``. It must not know where pixels come from.
"""
