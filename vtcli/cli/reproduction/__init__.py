"""``vtcli reproduce``: a paper's commands in order, checked before they cost anything, here or as jobs of Slurm."""
