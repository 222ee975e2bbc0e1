"""The hand-over to the native engine: loaders of forebay's own datasets."""
