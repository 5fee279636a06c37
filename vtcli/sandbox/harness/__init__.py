"""Part of the worker beside the model's code: its names, its output and errors, the images that it shows.

It may import ``provenance`` and ``video``. It must not know of processes and channels. Nothing here protects anything:
the code runs in the same interpreter and may change all of it."""
