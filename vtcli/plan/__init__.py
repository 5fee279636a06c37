"""What a run would need: memory, time and GPU-hours, by arithmetic alone (docs/plan.md)."""
