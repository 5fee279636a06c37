"""One run of a stage: its work folder and commit, tracker, progress, environment, and place in a Slurm job.

Stages use it. It may import the store, the configuration, rollout, signals and the messages of ranks. It must not know
a stage, a recipe or a reward.
"""
