"""Rules that decide which rows of a dataset or demonstrations stay: one rule a file, pure over facts of the rows.

``facts`` has the facts that a rule gets and the outcome that it gives. ``applying`` runs the rules one after the other.
``rolling`` measures pass rates, the one fact that costs something. ``account`` reports what was kept and dropped. Rules
know no stage, no model and no trainer. A rule from outside is a function and its node in YAML. The room may import
benchmarks, rollout, signals, data and the store.
"""
