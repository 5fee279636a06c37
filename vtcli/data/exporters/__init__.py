"""Datasets and demonstrations in the formats of other trainers: rows, files and a data card.

It may import the store and the rest of ``data``. It must not know how rows were made, beyond their lineage.
"""
