"""Imported by the fork server of ``forked.py``: its children begin with Hydra's parsers and often used compositions."""

from __future__ import annotations

from vtcli.config import compose

for stage, words in (("synth", ["scale=tiny"]), ("rl", ["+recipe=toolsrl", "scale=tiny"]), ("eval", ["scale=tiny"])):
    compose.load(stage, words)
