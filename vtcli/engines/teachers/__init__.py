"""Teachers that play the policy: an endpoint, or a model of ours, on the rows of a dataset.

``card`` says what a teacher is, ``endpoint`` and ``model`` open one, ``distil`` plays the rows and keeps what finished,
``estimate`` says what that will cost, ``report`` what became of it. Rules of what is kept are in
``vtcli.filters.demonstrations``. Nothing here knows a recipe.
"""
