"""Benchmarks: rows of a local copy, a prompt, scorers, an aggregate, and the numbers that papers printed.

A benchmark is a file of conf/benchmark. This room reads its rows as samples, scores stored trajectories and puts the
printed numbers beside ours. It may import signals, statistics, data and the store. It knows no model, engine or stage.
"""
