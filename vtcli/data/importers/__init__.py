"""Data that others wrote, as questions and demonstrations. A set is a mapping in YAML; presets/ has public ones."""
