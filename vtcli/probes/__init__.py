"""Probes: further rollouts that ask what an evaluation's own trajectories cannot answer.

The causal probe continues stored trajectories after the picture of a tool was replaced. This room chooses and cuts
trajectories, makes the pictures, and computes effects from stored rows. It may import rollout, signals, statistics,
geometry and the store. It knows no engine, model or stage.
"""
