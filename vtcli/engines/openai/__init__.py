"""Policies behind an OpenAI-compatible endpoint: nothing here is trained, and no tokenizer is known.

``chat`` writes messages as ids and back, ``policy`` asks the endpoint, ``replies`` keeps what was paid for, ``ledger``
counts tokens and money. Nothing here knows a task, an environment or a recipe.
"""
