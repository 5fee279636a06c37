"""Rollouts: the loop of one trajectory, the stream of many, the batch of a training step.

``loop`` alternates policy and world, ``stream`` adds signals and verdicts, ``batch`` fills a step over all ranks. The
room knows policies, chats and worlds only through ``vtcli.protocols``. It may import algo, signals, ``envs.claims`` and
the store. It must not know an engine, a model family, a tool, a paper or a heavy library.
"""
