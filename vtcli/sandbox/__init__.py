"""The code runner: Python written by a model, one confined process per trajectory, forked from a warm template."""
