"""Limits of every wait of the sandbox that the configuration does not set, and what follows where one is exceeded."""

from __future__ import annotations

# In the host.
GRACE_S = 45.0
"""Beyond a run's wall clock until its guard must have answered: start, kill, files put back, a busy machine. Then the
run is ``lost``."""
END_S = 5.0  # for a template to end by itself; then it is killed
GONE_S = 10.0  # for the processes of a closed episode to be gone; then its guard is killed, after END_S the template
# In the template.
STOP_S = (
    2.0  # for all guards to be gone when the host has closed the channel; then it ends, and tier full kills the rest
)
SETUP_S = 2.0  # for the setup of an episode whose guard cannot be forked; then the host is told that its guard ended
# In the guard.
START_S = 30.0  # for a worker to lock itself down and make its names; then the episode is lost
COPY_S = 10.0  # for a worker to fork before a run, never longer than the run's own wall clock; then it is ``protocol``
CLEAN_S = 2.0  # for killed processes to be gone; then the episode is lost
CLOSE_S = 1.0  # for a worker that closed its channel to die; then it is ``protocol``
TICK_S = 0.5  # between looks at CPU time, output and workspace
ANSWER_S = (
    30.0  # for the host to make room for an answer; then the guard ends. An order to a worker never waits for room
)
CLEAR_S = 20.0  # for the workspace to be cleared, while something may still write; then the episode is lost
# In the worker. For an order it waits for ever: it is stopped between runs, and dies with its guard.
BUSY_S = 30.0  # for another thread that reads from the same video; then the code sees a VideoError
# In the probes.
PROBE_S = 30.0  # for the probe of one tier, in the host; then the tier does not hold
LIFETIME_S = 20  # for a probe of one tier, before it ends itself
