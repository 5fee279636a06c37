"""One paper a file: pure arithmetic on signals."""
