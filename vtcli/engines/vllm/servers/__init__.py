"""vLLM servers: how they are started or found, asked, given weights, and mended."""
