"""Attacks on the code sandbox, a file per family, and the judge that says what each of them got.

``suite.CASES`` is the list, ``check.AttackRound`` runs it against a pool, ``python -m vtcli.attacks`` and `vtcli
sandbox check` do so on the user's own machine. It may import the sandbox, which
imports nothing from here. It must not know a stage or a policy.
"""
