"""vLLM as a policy, in this process; ``servers`` has the same behind HTTP.

``policy`` is its face, ``start`` makes vLLM's arguments, ``sync`` and ``buckets`` bring weights. ``worker`` and
``draw`` run inside vLLM's own processes. It may import families, the store, the rollout's clock and limits, and the
messages of ranks. It must not know how weights were learnt: they are names and tensors here.
"""
