"""Credit, packing, losses, metrics: pure."""
