"""Plans held against what a compiler makes of them."""
