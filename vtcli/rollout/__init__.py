"""Rollouts: the loop of one trajectory, the stream of many, the batch of a training step.

``loop`` alternates policy and world, ``stream`` adds signals and verdicts, ``batch`` fills a step over all ranks. The
room speaks to policies, chats and worlds by ``vtcli.protocols`` alone. It may import algo, signals,
``envs.claims`` and the store. It must not know an engine, a model family, a tool, a paper or a heavy library.
"""
