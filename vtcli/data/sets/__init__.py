"""Public sets: a function each, from a record of its files to a ``SetRow``. ``own`` reads columns by their names.

A set of somebody else's is a function of the same form in any module. The functions may import what reads options of
``importers``; they open no file and decode no image. What they cannot use they raise as ``UnusableRow``.
"""
