"""Runbooks: steps of several commands, their runner, their cost, their results, and steps that make missing inputs.

The command line uses it. It may import the stages and every room but the command line: it composes and checks commands,
and runs each one in a separate process or as a job of Slurm. It must not know a reward or a model family.
"""
