"""Judges: a model behind an OpenAI-compatible endpoint, two of them, and the oracle that answers from ground truth.

The order in which a trajectory passes them:

- **Signals** (``vtcli.signals``) are facts of one trajectory, such as "the answer is right". They carry no weight.
  ``signals.measuring`` measures them for a run, and opens the run's judge.
- **Judges** (this room) answer where no rule decides. A signal sends one ``Case``; the ``Ruling`` is a score or None.
  Rulings are stored in a file (``store.keyed``), so that a model is asked once.
- **Rewards** (``vtcli.rewards``) turn the signals of a group into a ``Verdict`` each: a total with its parts.
- **Credit** (``algo.advantages``) turns the verdicts of a group into one number per policy turn, for the loss.
- **Scoring** (``vtcli.scoring``) does the same to stored trajectories, long after they were made. ``scoring.verdicts``
  applies a reward to stored groups.

The room may import the store, ``geometry`` and ``protocols``. It must not know a signal, a reward or a stage.
"""

WHERE = ("url", "key_env", "cache", "patience")
"""Keys of a judge that set the place and the patience of questions. They change no verdict."""

RUNTIME_KEYS = tuple(f"judge.{which}{key}" for which in ("", "answer.", "evidence.") for key in WHERE)
"""The same keys in conf/judge. They are not part of an artifact's identity."""
