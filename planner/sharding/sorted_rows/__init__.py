"""Planning with rows of experts sorted within blocks of tokens, not all together."""
