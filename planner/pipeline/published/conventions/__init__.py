"""Cost conventions, one family a file; `planner/pipeline/published/formulas.py` lists them."""
