"""Teachers that play the policy on the rows of a dataset: an endpoint, or a model of ours.

``card`` describes a teacher; ``endpoint`` and ``model`` open one. ``distil`` plays the rows and keeps finished tries;
``errors`` makes first calls fail. ``estimate`` predicts the cost. ``demos`` and ``report`` write the results. The rules
for which tries become demonstrations are in ``vtcli.filters.demonstrations``. This package may import other engines,
rollout and envs. It must not know a recipe or a stage.
"""
