"""From a command line to a checked configuration: compose, bind, bounds, origins, recipes.

``compose`` alone imports Hydra. ``binding`` and ``bounds`` know no other room, so that every room may use them.
"""
