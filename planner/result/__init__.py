"""Plans as users hold them, and what is done with them."""
