"""Scoring of stored trajectories: find them, measure missing signals, apply rewards to their groups, compare.

``stored`` finds trajectories, ``missing`` and ``collect`` measure what they lack, ``verdicts`` applies a reward,
``matrix`` and ``agreement`` compare. It may import signals, judging, rewards' read log, envs' claims and the store. It
must not roll anything out, and knows no engine. ``vtcli.judging`` explains the words.
"""
