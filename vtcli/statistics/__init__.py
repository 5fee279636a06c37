"""Statistics of an evaluation: rows of trajectories, intervals, paired tests, agreement, ranks, pass@k.

One subject a file, all of it pure: numpy and scipy, no file, network, clock, device or torch. It may import ``schema``,
``errors`` and ``signals``, whose facts a row holds. It must not know a model, an engine or how a report shows a number.
"""
