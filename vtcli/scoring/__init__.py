"""Scoring what is stored: find trajectories, measure what they lack, apply rewards to their groups, compare."""
