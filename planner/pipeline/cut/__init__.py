"""A traced loss cut into stages, and each stage as a training step of its own."""
