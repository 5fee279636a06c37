"""Rules that decide which rows of a dataset or demonstrations stay: one rule a file, pure over facts of the rows.

``facts`` defines the facts that a rule reads and its outcome. ``applying`` runs the rules in order. ``account`` reports
kept and dropped rows. Rules must not know a stage, a model or a trainer. A rule from outside is a function and its node
in YAML. The room may import benchmarks, rollout, signals, data and the store.
"""
