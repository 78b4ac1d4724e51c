"""Which proven rewrites a plan gains from: found by search, priced by plans, kept in its file."""
