"""Profile formats, one file each; `planner/pipeline/published/reading.py` chooses."""
