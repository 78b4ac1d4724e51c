"""Inter-op: a traced loss as a chain of slots, cut into stages."""
