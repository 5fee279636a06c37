"""Asking a policy about samples.

``agent.py`` decides how it answers, and ``session.py`` holds an agent that is open. ``questions.py`` and
``benchmark_questions.py`` are rows as questions, and the two of validation ask them at the weights of a training step.
It may import engines, environments, rollouts, signals and benchmarks. It must not know a stage or its run.
"""
