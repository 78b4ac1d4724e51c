"""The training step of a loss and an optimizer, and its micro-batches."""
