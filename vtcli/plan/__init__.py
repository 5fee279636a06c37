"""The needs of a run: memory, time and GPU-hours, by arithmetic alone (docs/plan.md)."""
