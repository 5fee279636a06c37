"""The only importers of the libraries that generate and learn."""
