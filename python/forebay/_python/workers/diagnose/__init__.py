"""Reports about workers and samples: deaths, stacks, growth, incidents, statistics."""
