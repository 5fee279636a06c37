"""From a command line to a checked configuration: compose, bind, bounds, origins, recipes.

``compose`` alone imports Hydra, and stands above the engines. ``binding`` and ``bounds`` know no other room, so that
every room may use them. Nothing here knows what a key means: the dataclass of a stage defines that.
"""
