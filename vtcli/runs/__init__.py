"""One run of a stage: its work folder and commit, its tracker, its progress, its model, its place in a Slurm job.

Stages use it; it knows the store and the configuration, and no stage.
"""
