"""Plan files: their records, how they are read, checked and shown; data only."""
