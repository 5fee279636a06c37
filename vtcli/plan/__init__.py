"""The needs of a run: memory, time and GPU-hours, by arithmetic alone (docs/plan.md).

``architecture``, ``hardware`` and ``job`` are the inputs; ``memory``, ``steptime`` and ``estimate`` the formulas;
``fit`` searches a layout. It may import ``errors``, the bounds of the configuration, and the rule for images' sizes
(``store.images``). It must not load a model or a heavy library, or write anything.
"""
