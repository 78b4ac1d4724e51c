"""The schedule of a compiled program: what runs beside each of its collectives."""
