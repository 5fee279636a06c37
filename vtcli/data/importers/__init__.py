"""Data that others wrote, as samples: one format a file."""
