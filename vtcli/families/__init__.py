"""Kinds of models. ``family.py`` is the seam, ``table.py`` finds a family by ``config.json``'s ``model_type``.

Each family has a folder: chat, vision, model, tiny version. Nothing outside the folder imports it by name.
``messages.py`` (demonstrations to rows), ``calls.py`` (call syntax) and ``templates.py`` are the same for all families.
It may import the schema, the Protocols, the rule for images' sizes (``store.images``) and the plan's architectures. It
must not know an engine, an environment or a stage.
"""
