"""The world of one rollout."""
