"""Asking a policy about samples. ``agent.py`` decides how it answers, and ``session.py`` holds an agent that is open.

It may import engines, environments, rollouts and signals. It must not know a stage, an artifact that a stage makes, or
where questions come from.
"""
