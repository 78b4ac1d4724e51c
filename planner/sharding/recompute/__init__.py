"""Which values of the forward pass are kept for the backward pass, and which are computed again."""
