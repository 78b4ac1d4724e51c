"""Planners of others, rewritten with their own cost models, to compare ours with."""
