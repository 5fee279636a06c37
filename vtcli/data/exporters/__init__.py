"""Datasets and demonstrations in the formats of other trainers: rows, files and a data card."""
