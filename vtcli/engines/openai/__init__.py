"""Policies behind an OpenAI-compatible endpoint: nothing here is trained, and no tokenizer is known.

``chat`` writes messages as ids and back, ``policy`` asks the endpoint, ``replies`` keeps what was paid for, ``ledger``
counts tokens and money. It may import the endpoint of judges (``judging.endpoint``), families' call syntax and the
store. It must not know a task, a recipe or a learner.
"""
