"""Loaders of Python datasets: passes over them, their order, progress and state."""
