"""Rewrites of programs into equal, cheaper ones.

The catalogue of verified rewrites is not part of this version: the package exports nothing, the
planner applies no rewrite, and a plan's `substitutions` is empty.
"""
