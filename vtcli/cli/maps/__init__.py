"""``vtcli map``: a grid of conditions, the commands that train and evaluate in each, and a table and figure of them.

It may import all rooms. It runs stages as commands in child processes, so it must not import one.
"""
