"""Limits of every wait of the sandbox that the configuration does not set; ``docs/sandbox.md`` has the table of all."""

from __future__ import annotations

# In the host.
GRACE_S = (
    45.0  # beyond a run's wall clock until its guard must have answered: start, kill, files put back, a busy machine
)
END_S = 5.0  # for a template to end by itself before it is killed
GONE_S = 10.0  # for the processes of a closed episode to be gone before its guard is killed
# In the template.
STOP_S = 2.0  # for all guards to be gone when the host has closed the channel
SETUP_S = 2.0  # for the setup of an episode whose guard cannot be forked
# In the guard.
START_S = 30.0  # for a worker to lock itself down and make its names
COPY_S = 10.0  # for a worker to fork before a run; never longer than the run's own wall clock
CLEAN_S = 2.0  # for killed processes to be gone
CLOSE_S = 1.0  # for a worker that closed its channel to die
TICK_S = 0.5  # between looks at CPU time, output and workspace
ANSWER_S = 30.0  # for the host to make room for an answer
CLEAR_S = 20.0  # for the workspace to be cleared, while something may still write
# In the worker.
BUSY_S = 30.0  # for another thread that reads from the same video
# In the probes.
PROBE_S = 30.0  # for the probe of one tier, in the host
LIFETIME_S = 20  # for a probe of one tier, before it ends itself
