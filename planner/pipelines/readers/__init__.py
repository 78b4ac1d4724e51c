"""Profile formats, one file each; `planner/pipelines/reading.py` chooses."""
