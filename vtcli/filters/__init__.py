"""What decides which rows of a dataset or demonstrations stay: one rule a file, pure over facts of the rows.

``facts`` says what a rule is told and what it answers, ``applying`` lets the rules follow each other, ``rolling``
measures pass rates (the one fact that costs something), ``account`` says what was kept and dropped. Rules know no
stage, no model and no trainer; a rule from outside is a function and its node in YAML.
"""
