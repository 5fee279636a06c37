"""Scoring of stored trajectories: find them, measure missing signals, apply rewards to their groups, compare."""
