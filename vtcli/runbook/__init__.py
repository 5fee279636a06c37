"""Runbooks: steps of several commands, steps that make a missing input, their runner, their cost, their results.

The command line uses it. It may import the stages and every room but the command line: it composes and checks commands,
and runs each one in a separate process or as a job of Slurm. It must not know a reward or a model family.
"""
