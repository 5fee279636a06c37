"""Data that others wrote, as questions, demonstrations and trajectories.

``sets`` has the meaning of records. The room may import it, the store, and the rules and call syntax that a row may
name. It must not know a stage or an engine. Each row is untrusted: a bad one is named with its file and place, and
costs no other row.
"""
