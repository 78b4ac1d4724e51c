"""Planners, one file each; `planner/pipelines/registry.py` lists them."""
