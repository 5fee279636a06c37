"""One generator a file: pixels and exact ground truth, drawn from a seed.

A generator is a function of its parameters and a random generator. It may import the schema, drawing libraries, and
the script that solves its task (``teachers.scripted``). It must not know a prompt, an environment or a file format.
"""
