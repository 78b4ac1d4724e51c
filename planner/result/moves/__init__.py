"""Which arrays move, and between which devices, from one plan to another."""
