"""Searches for good choices: neighbourhoods, kernels, restarts, branch and bound."""
