"""vLLM as a policy, in this process; ``servers`` has the same behind HTTP."""
