"""Planners, one file each; `planner/pipeline/published/registry.py` lists them."""
