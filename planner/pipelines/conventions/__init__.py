"""Cost conventions, one family a file; `planner/pipelines/formulas.py` lists them."""
