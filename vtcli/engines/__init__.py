"""Policies that sample and the learner that trains, behind the Protocols of ``vtcli.protocols``.

This room alone imports torch models, vLLM and DeepSpeed. ``policies`` chooses an engine by its configuration, and
imports its library only then. ``parity`` compares policy and learner, ``phases`` gives them the device in turns. The
room may import rollout, envs, families, algo and the store. It must not know a stage, a recipe or a concrete family.
"""
