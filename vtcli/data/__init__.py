"""One generator or source a file: pixels and exact ground truth."""
