"""One native tool a file, with its OpenAI function schema."""
