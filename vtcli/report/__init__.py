"""Tables, plots and trajectories for people: ``build.build(folder, data, images)`` writes the page.

``content`` has the figures, ``tables`` and its neighbours arrange them, ``printing`` prints every table of the project.
``page`` is the viewer in a browser. The room may import statistics, the store and the rooms whose results it shows. It
must not measure or run anything: each figure follows from stored rows.
"""
