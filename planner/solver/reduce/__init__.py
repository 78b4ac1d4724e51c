"""Reductions of a problem to a smaller one, each with the way back."""
