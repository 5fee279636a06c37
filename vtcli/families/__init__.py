"""One model family a folder: chat, vision, loading, and a tiny version with random weights."""
