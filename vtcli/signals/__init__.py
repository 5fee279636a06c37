"""One measured fact a file; logged, never weighted."""
