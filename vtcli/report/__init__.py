"""Tables, plots and trajectories for people: ``build.build(folder, data, images)`` writes the page."""
