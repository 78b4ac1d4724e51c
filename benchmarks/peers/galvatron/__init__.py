"""Galvatron's planner: strategies of equal layers under its cost model."""
