"""The learner on DeepSpeed: rows in, one optimiser step out, whatever the ranks and micro-batches.

``deepspeed`` is its face. Beside it are what a step needs (packing, attention, head, features), what ranks need
(distributed, heartbeat, sharing) and what a checkpoint needs (saving, storing, zero). It may import algo, families and
the store. It must not know a policy, a reward or an environment.
"""
