"""Tables, plots, and pages to look at."""
