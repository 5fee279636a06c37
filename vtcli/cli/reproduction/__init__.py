"""``vtcli reproduce``: a paper's commands in order, checked before they cost anything, here or as jobs of Slurm.

It may import all rooms. It runs stages as commands in child processes, so it must not import one.
"""
