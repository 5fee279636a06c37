"""Rollouts: the loop of one trajectory, the stream of many, the batch of a training step."""
