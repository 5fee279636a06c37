"""From a command line to a checked configuration: compose, bind, bounds, origins, recipes.

``compose`` is the only importer of Hydra, and stands above the engines. ``binding`` and ``bounds`` know no other room,
so that every room may use them. Nothing here knows the meaning of a key: a stage's dataclass defines it.
"""
