"""What is reported of workers and samples: deaths, stacks, growth, incidents, statistics."""
