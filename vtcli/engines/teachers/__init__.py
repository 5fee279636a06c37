"""Teachers that play the policy on the rows of a dataset: an endpoint, or a model of ours.

``card`` says what a teacher is, ``endpoint`` and ``model`` open one. ``distil`` plays the rows and keeps what finished;
``errors`` makes first calls fail. ``estimate`` says what it will cost. ``demos`` and ``report`` write what came of it.
Rules of what is kept are in ``vtcli.filters.demonstrations``. It may import other engines, rollout and
envs. It must not know a recipe or a stage.
"""
