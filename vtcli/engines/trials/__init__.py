"""Trials of a machine for ``vtcli doctor --gpu``: each file tries one part with the real engines.

A trial runs in a separate process (``python -m vtcli.engines.trials``), as a crash or a hang may end it. It may
import all engines; it knows nothing of stages, recipes and artifacts.
"""
