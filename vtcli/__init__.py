"""Train vision-language models to think with images: one small exact core, one recipe per paper."""

__version__ = "0.1.0"
