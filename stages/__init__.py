"""The verbs: one file a stage, a config dataclass and a run()."""
