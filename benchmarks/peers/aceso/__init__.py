"""Aceso's planner: stages of ops, degrees and recomputation under its cost model."""
