"""Planning with a causal sequence in the order of zigzag from the first layer to the last."""
