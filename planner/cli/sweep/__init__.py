"""`meshwright plan --sweep`: one plan for each combination of some values."""
