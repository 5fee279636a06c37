"""From a command line to a checked configuration: compose, bind, bounds, origins, recipes.

Only ``compose`` and ``overrides`` import Hydra; ``compose`` stands above the engines. ``binding`` and ``bounds`` know
no other room, so that every room may use them. Nothing here knows the meaning of a key: a stage's dataclass defines it.
"""
