"""One generator a file: pixels and exact ground truth, drawn from a seed."""
