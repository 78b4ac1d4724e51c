"""Costs of the decisions of a plan: time, collectives, memory."""
