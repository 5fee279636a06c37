"""Scorers of benchmarks: pure functions of a sample and a text, one kind of answer a file.

A scorer imports the schema and text libraries alone. It knows no model, judge, file or benchmark; ``table.SCORERS`` has
them by the names that a truth (``truth.rule``) and a benchmark (conf/benchmark) use.
"""
