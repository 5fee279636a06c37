"""Attacks on the code sandbox, a file per family, and the judge of what each of them got.

``suite.CASES`` is the list and ``rounds.AttackRound`` runs it against a pool. The tests run rounds in processes of
their own. So can you, for one attack: ``PYTHONPATH=tests:tests/support python -m attacks.rounds full net.tcp``.
"""
