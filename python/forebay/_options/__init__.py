"""Torch's arguments, forebay's own, and their checks. Every loader takes its options from here."""
