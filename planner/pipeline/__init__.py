"""The plan of a training step in stages."""
