"""Public sets: a function each, from a record of its files to a ``SetRow``. ``own`` reads columns by their names.

A set of somebody else's is a function of the same form in any module. The functions may import the readers of
options and chats of ``importers``, and must not know a file or a pixel: they open none and decode none. A record that
they cannot use raises ``UnusableRow``.
"""
